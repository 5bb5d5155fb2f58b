"""Rendezvous of the ranks of one start in a store that torchrun keeps between starts.

Each torchrun counts the failures of its own node, so on several nodes its count does not identify
a start: rank 0 counts the starts in the store.
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
    """A part of the store for the ranks of this start only. restarts: number of earlier starts."""

    store: Store
    restarts: int

    def tell_failure(self, rank: int, what: str) -> None:
        """Report a rank's failure to the other ranks, unless one has failed before."""
        with suppress(RuntimeError):  # the store's process may have ended
            self.store.compare_set(_FAILURE, "", f"rank {rank}: {what}")

    def first_failure(self) -> str | None:
        """Return a rank's failure report; None if the rank or the store was killed."""
        with suppress(RuntimeError):
            if self.store.check([_FAILURE]):
                return str(self.store.get(_FAILURE).decode())
        return None


def meet(store: Store, rank: int, world: int, restarts: int, timeout_s: float) -> Meeting:
    """Wait for all `world` ranks. restarts: the count of this rank's torchrun.

    Raise UserError if rank 0 has not come in time, and a RuntimeError of the store if another rank
    has not.
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
    """Return the latest start once rank 0 has counted this rank in.

    The latest start in the store may belong to processes that have ended. Raise UserError at the
    timeout.
    """
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
