"""How the ranks of one start meet in a store, which torchrun keeps from one start to the next.

Each torchrun counts the failures of its own node, so its count does not tell starts apart on
several: rank 0 counts them in the store.
"""

import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed.distributed_c10d import PrefixStore, Store

from accelssl.errors import UserError

_STARTS, _LATEST, _ALL, _FAILURE = "starts", "latest", "all", "failure"
_ASK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Meeting:
    """A part of the store that only the ranks of this start use. restarts: how many came before."""

    store: Store
    restarts: int

    def tell_failure(self, rank: int, what: str) -> None:
        """Leave what happened to a rank for the others, unless one has failed before."""
        with suppress(RuntimeError):  # the store may be gone with its process
            self.store.compare_set(_FAILURE, "", f"rank {rank}: {what}")

    def first_failure(self) -> str | None:
        """Return a rank's failure report; None if the rank or the store was killed."""
        with suppress(RuntimeError):
            if self.store.check([_FAILURE]):
                return str(self.store.get(_FAILURE).decode())
        return None


def meet(store: Store, rank: int, world: int, restarts: int, timeout_s: float) -> Meeting:
    """Waits for all `world` ranks. restarts: as this rank's torchrun counts them.

    UserError when rank 0 has not come in time; a RuntimeError of the store when another has not.
    """
    if rank == 0:
        name, restarts = _convene(store, world, restarts)
    else:
        name, restarts = _join(store, rank, restarts, timeout_s)
    return Meeting(PrefixStore(name, store), restarts)


def _convene(store: Store, world: int, restarts: int) -> tuple[str, int]:
    start = store.add(_STARTS, 1)
    name = f"start{start}"
    store.set(_LATEST, name)
    here = [store.get(f"{name}/{rank}").decode() for rank in range(1, world)]
    most = max([start - 1, restarts, *(int(who.split()[1]) for who in here)])
    store.set(f"{name}/{_ALL}", json.dumps([here, most]))
    return name, most


def _join(store: Store, rank: int, restarts: int, timeout_s: float) -> tuple[str, int]:
    """The latest start may be that of processes that are gone: it is ours if it counts us in."""
    me, until = f"{uuid.uuid4().hex} {restarts}", time.monotonic() + timeout_s
    while time.monotonic() < until:
        name = store.get(_LATEST).decode()
        store.set(f"{name}/{rank}", me)
        if store.check([f"{name}/{_ALL}"]):
            here, most = json.loads(store.get(f"{name}/{_ALL}"))
            if me in here:
                return name, most
        time.sleep(_ASK_AGAIN_S)
    raise UserError(
        f"Rank 0 has not come within {timeout_s / 60:.0f} min.",
        "Start all nodes with the same --nnodes and --rdzv-endpoint.",
    )
