"""Many ranks, one run: who this process is, how ranks meet, agree and share gradients.

torchrun starts one process a GPU (or several on CPUs) and says in the environment which is which.
Tensors of a step travel by NCCL, or gloo on CPUs. Whatever processes tell each other besides goes
through a gloo group of its own, so that it never waits for a GPU and no GPU waits for it.
"""

import gc
import os
import platform
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from accelssl.errors import UserError
from accelssl.model.gather import world_size
from accelssl.train.ranks.rendezvous import Meeting, meet
from accelssl.train.ranks.streams import training_stream

T = TypeVar("T")

STEP_TIMEOUT = timedelta(minutes=10)
# While rank 0 evaluates, the other ranks wait: hours on a large set.
WAIT_TIMEOUT = timedelta(days=7)
VOTE_LAG = 2
FAILED = 128
"""The vote of a failed rank. The value is above all signals, so no other vote outvotes it."""
# Before the first CUDA graph of a replica: in its first ten steps DistributedDataParallel waits for
# timers of the device, which a capture must not.
EAGER_STEPS = 11
# Matrix products beside an all-reduce lose more than the processors it takes: their waves no longer
# fit. Few large ones, at a higher rate, disturb less than torch's 25 MB.
BUCKET_MB = 100
_NO_RUN_ID = "none"  # so torchrun calls a job without --rdzv-id
_SOURCE = re.compile(r"^\[\S+:\d+\] *")
"""The position in gloo's source that gloo puts before its messages."""
_LOST = re.compile("connection (closed|reset|was likely closed)|broken pipe", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """The number of this process among `world` processes; local: among those of this machine.

    `restarts` counts how often torchrun has restarted the processes after a failure: on this node,
    or in total once the ranks are joined. `hosts` is the gloo group of all processes, None for a
    single process.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    restarts: int = 0
    hosts: dist.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Return True on the rank that writes, prints and evaluates."""
        return self.rank == 0

    def share(self, batch: int) -> int:
        """Return this rank's number of images of a global batch.

        Raise UserError unless all ranks get the same number.
        """
        if batch % self.world:
            near = max(1, round(batch / self.world)) * self.world
            raise UserError(
                f"A batch of {batch} images does not divide among {self.world} ranks.",
                f"--batch counts the images of all ranks: use for example --batch {near}.",
            )
        return batch // self.world

    def wait(self) -> None:
        """Wait until every rank is here, without a time limit."""
        if self.hosts is not None:
            dist.barrier(group=self.hosts)

    def from_main(self, value: T) -> T:
        """Return rank 0's value on every rank. The value is pickled: use at start, not in steps."""
        values = [value]
        if self.hosts is not None:
            dist.broadcast_object_list(values, src=0, group=self.hosts)
        return values[0]

    def from_all(self, value: T) -> list[T]:
        """Return all ranks' values in rank order, on every rank. Use at start, not in steps."""
        if self.hosts is None:
            return [value]
        values = [value] * self.world
        dist.all_gather_object(values, value, group=self.hosts)
        return values


ALONE = Ranks()


def read_ranks() -> Ranks:
    """Read torchrun's environment; return ALONE without torchrun. UserError if it is incomplete."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return replace(ALONE, restarts=restarts)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set.",
            "Start with torchrun --nproc-per-node GPUS -m accelssl train, which sets them all.",
        )
    rank, world, local_rank, local_world = (int(os.environ[name]) for name in names[:4])
    return Ranks(rank, world, local_rank, local_world, restarts)


def this_job() -> str:
    """Return a name of the torchrun that started this process, the same after a restart.

    The name is --rdzv-id, which the torchruns of all nodes share, if one was given (--standalone
    draws one).
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID", _NO_RUN_ID)
    if name != _NO_RUN_ID:
        return name
    launcher = os.getppid()
    try:
        stat = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()
        began = stat[19]
    except (OSError, IndexError):  # no /proc: a process number is nearly as good
        began = "?"
    return f"{platform.node()} {launcher} {began}"


def device_of(ranks: Ranks, device: torch.device) -> torch.device:
    """Return the device of this rank for the requested `device`: each rank uses its own GPU.

    Raise UserError for one named GPU with many ranks, and for fewer GPUs than ranks.
    """
    if ranks.world == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise UserError(
            f"--device {device} names one GPU for {ranks.world} ranks.",
            "Use --device cuda: each rank takes the GPU of its own number.",
        )
    if ranks.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"Rank {ranks.rank} finds no GPU: torch sees {torch.cuda.device_count()} of them for "
            f"{ranks.local_world} ranks on this machine.",
            f"Use torchrun --nproc-per-node {torch.cuda.device_count()}.",
        )
    return torch.device("cuda", ranks.local_rank)


@contextmanager
def joined(ranks: Ranks, device: torch.device) -> Iterator[Ranks]:
    """Connect the ranks for the block, and keep every rank until all are done.

    A UserError on one rank is raised with the rank's number. The process of this rank then has to
    exit. The other ranks lose their connection and raise a UserError with the first rank's failure.
    torchrun ends the remaining processes.
    """
    if ranks.world == 1:
        yield ranks
        return
    meeting = None
    try:
        meeting = _meet(ranks)
        hosts = _connect(ranks, device, meeting.store)
        connected = replace(ranks, hosts=hosts, restarts=meeting.restarts)
        yield connected
        connected.wait()
    except UserError as error:
        if meeting:
            meeting.tell_failure(ranks.rank, error.what)
        raise UserError(f"Rank {ranks.rank}: {error.what}", error.remedy) from error
    except Exception as error:
        reason = _SOURCE.sub("", (str(error).splitlines() or [""])[0])
        if not (isinstance(error, RuntimeError) and _LOST.search(str(error))):
            if meeting:
                meeting.tell_failure(ranks.rank, f"{type(error).__name__}: {reason}")
            raise  # torch puts the rank before each line of its traceback
        if meeting and (failure := meeting.first_failure()):
            raise UserError(
                f"Rank {ranks.rank} stopped because of {failure}",
                "Mend that and go on with --resume.",
            ) from error
        raise UserError(
            f"Rank {ranks.rank} lost the other ranks: connection closed by the other side.",
            "Look for the message of the rank that failed first; go on with --resume.",
        ) from error
    # After an error there is nothing to tear down in order: others may be stuck in a collective.
    gc.collect()  # NCCL waits for ever for CUDA graphs that still hold its kernels
    dist.destroy_process_group()


def _meet(ranks: Ranks) -> Meeting:
    places = dist.rendezvous("env://", timeout=STEP_TIMEOUT)  # type: ignore[attr-defined]
    store, _, _ = next(places)
    within_s = STEP_TIMEOUT.total_seconds()
    return meet(store, ranks.rank, ranks.world, ranks.restarts, within_s)


def _connect(ranks: Ranks, device: torch.device, store: Store) -> dist.ProcessGroup:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=STEP_TIMEOUT,
        device_id=device if on_gpu else None,
    )
    hosts = dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT)
    assert isinstance(hosts, dist.ProcessGroup)  # every rank is a member
    return hosts


def replicate(objective: nn.Module, device: torch.device) -> nn.Module:
    """Return the module to run forward so that backward averages gradients over ranks.

    For a single process, return the objective itself. Otherwise return DistributedDataParallel
    around the objective. Both share their parameters: save and load those of the objective, whose
    keys are the same on any number of ranks. Buffers are not broadcast: the batch norms compute the
    same ones on every rank.

    A CUDA graph may hold a step of the module, after EAGER_STEPS other steps. Capture on the
    training stream, on which the gradients accumulate.
    """
    if world_size() == 1:
        return objective
    if device.type != "cuda":
        return _parallel(objective)
    # Blocks that are compiled one by one overlap with communication as they are; dynamo would cut
    # each of them at the borders of DistributedDataParallel's buckets.
    torch._dynamo.config.optimize_ddp = False
    current, training = torch.cuda.current_stream(device), training_stream(device)
    training.wait_stream(current)
    with torch.cuda.stream(training):
        replica = _parallel(objective)
    current.wait_stream(training)
    return replica


def _parallel(objective: nn.Module) -> DistributedDataParallel:
    replica = DistributedDataParallel(
        objective, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MB
    )
    replica.broadcast_buffers = False  # as an argument, newer releases warn of its other meaning
    # Every 100th step it would read timers of the device, which waits, and breaks a capture.
    replica._set_ddp_runtime_logging_sample_rate(2**31 - 1)  # type: ignore[no-untyped-call]
    return replica


class Votes:
    """Votes that stop all ranks after the same step when a signal or a failure reaches one rank.

    Each step every rank votes with its caught signal, or FAILED. Ranks read the answer VOTE_LAG
    steps later, so no step waits for the answer. Votes go from host to host. They also keep ranks
    from running ahead of each other by more than VOTE_LAG steps, and detect dead ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._hosts = ranks.hosts
        self._pending: deque[tuple[dist.Work, Tensor]] = deque()

    def cast(self, vote: int) -> int:
        """Cast this rank's vote (0 for none). Return the highest of all ranks, VOTE_LAG steps old.

        Call once a step on every rank. A single process gets its own vote at once.
        """
        if self._hosts is None:
            return vote
        highest = torch.tensor(vote)
        work = dist.all_reduce(highest, dist.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._pending.append((work, highest))
        return self._oldest() if len(self._pending) > VOTE_LAG else 0

    def close(self) -> None:
        """Take the pending answers. Call after the same step on all ranks."""
        while self._pending:
            self._oldest()

    def _oldest(self) -> int:
        work, highest = self._pending.popleft()
        work.wait()
        return int(highest)
