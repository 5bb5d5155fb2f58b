"""--batch auto: time steps of each stage before the run and choose the batch."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.formats import ABSENT, aligned, quantity
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.order import batches_per_epoch
from accelssl.shards.shard_set import open_shards
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.plan.batch_choice import (
    Ceiling,
    Proposal,
    Trial,
    Trials,
    agree,
    largest_fitting,
    try_batches,
)
from accelssl.train.plan.batch_trial import try_batch
from accelssl.train.ranks.distributed import Ranks

FIRST = {"cuda": 64, "cpu": 8}
"""The smallest batch that is tried on a rank."""
ENOUGH_S = {"cuda": 120.0, "cpu": 20.0}
"""Longest time for the trials of a compression. A GPU compiles each size for some seconds."""
HEADS = "stage", "compression", "tokens", "batch", "units/s", "memory", "limited by"


@dataclass(frozen=True)
class Measured:
    """The proposal for one compression of the schedule, with the numbers of its stages from 1."""

    stages: tuple[int, ...]
    compression: Compression
    tokens: int
    proposal: Proposal
    of_ranks: tuple[Trials, ...]


@dataclass(frozen=True)
class BatchChoice:
    """The chosen batch of all ranks together, with the measurements behind it.

    proposals and trials count the images of one rank.
    """

    batch: int
    ranks: int
    measured: tuple[Measured, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def smallest_batch(world: int) -> int:
    """Return a batch for configurations of `world` ranks until the real one is chosen."""
    return max(2, world)


def choose_batch(
    config: TrainConfig,
    device: torch.device,
    ranks: Ranks,
    progress: Callable[[str], None] = lambda doing: None,
) -> BatchChoice:
    """Choose the batch for `config`, the same on all ranks; each rank measures alone.

    The result is the largest proposal of a stage that fits the memory in all stages. `progress` is
    called with the next measurement. Raise UserError if there are too few images, or the first
    batch does not fit.
    """
    kind, ceiling = device.type, _ceiling(config, ranks)

    def trial(compression: Compression, batch: int) -> Trial:
        progress(f"--batch auto: steps of {batch} images at {compression}")
        return try_batch(config, Stage(1.0, compression), batch, device)

    measured = []
    for compression, numbers in _compressions(config.schedule).items():
        mine = try_batches(partial(trial, compression), FIRST[kind], ceiling, ENOUGH_S[kind])
        of_ranks = ranks.from_all(mine)
        proposal = agree(of_ranks)
        if proposal is None:
            raise _nothing_fits(mine.tried[0].batch, compression, device)
        tokens = compression.keep(config.size)
        measured.append(Measured(numbers, compression, tokens, proposal, tuple(of_ranks)))

    def fits_here(each: Measured, batch: int) -> bool:
        known = each.of_ranks[ranks.rank].fits(batch)
        if known is None and kind == "cuda":
            return trial(each.compression, batch).units_per_s is not None
        return known is not False  # not measured on a CPU

    def fits(batch: int) -> bool:
        return all(ranks.from_all(all(fits_here(each, batch) for each in measured)))

    batch = largest_fitting([each.proposal for each in measured], fits)
    return BatchChoice(batch * ranks.world, ranks.world, tuple(measured))


def _ceiling(config: TrainConfig, ranks: Ranks) -> Ceiling:
    """Return the largest batch of a rank that training set and budget allow."""
    images = len(open_shards(config.data).split("train"))
    batches_per_epoch(images, ranks.share(smallest_batch(ranks.world)), ranks.world)
    dearest = max(config.sample_cost(stage) for stage in config.schedule.stages)
    of_set, of_budget = images // ranks.world, int(config.budget / dearest) // ranks.world
    if min(of_set, of_budget) < 2:  # a batch norm of a single rank cannot take one image
        of_ranks = f" on each of {ranks.world} ranks" if ranks.world > 1 else ""
        few = f"there are {images}" if of_set < 2 else f"--budget {config.budget:g} pays for fewer"
        raise UserError(
            f"--batch auto tries two images and more{of_ranks}, and {few}.",
            f"Give --batch a number{', or use fewer ranks' if of_ranks else ''}.",
        )
    return Ceiling(of_set, "images") if of_set <= of_budget else Ceiling(of_budget, "budget")


def _compressions(schedule: Schedule) -> dict[Compression, tuple[int, ...]]:
    """Return each compression with the numbers of its stages, in order."""
    found: dict[Compression, tuple[int, ...]] = {}
    for number, stage in enumerate(schedule.stages, 1):
        found[stage.compression] = (*found.get(stage.compression, ()), number)
    return found


def _nothing_fits(batch: int, compression: Compression, device: torch.device) -> UserError:
    return UserError(
        f"--batch auto: steps of {batch} images at {compression} do not fit the memory of "
        f"{device}, of which the loader needs a part.",
        f"Give a --batch below {batch} a rank, or use a smaller --model or fewer tokens.",
    )


def batch_text(choice: BatchChoice, config: TrainConfig) -> str:
    """Return a table of each stage's proposal, the chosen batch, and the peak learning rate."""
    rows = [list(HEADS), *(_row(each, choice.ranks) for each in choice.measured)]
    shares = f", {choice.batch // choice.ranks} on each rank" if choice.ranks > 1 else ""
    return "\n".join(
        [
            *aligned(rows),
            f"--batch {choice.batch}{shares}: the largest proposed{_of_those(choice)}.",
            "units/s are of steps alone, without data.",
            f"Rates are for 256 images: the peak learning rate is {config.base_lr:g} x "
            f"{choice.batch} / 256 = {config.peak_lr:.3g}.",
        ]
    )


def _of_those(choice: BatchChoice) -> str:
    is_known = any(each.proposal.memory_bytes is not None for each in choice.measured)
    return " that fits the memory in all stages" if is_known else ""


def _row(each: Measured, ranks: int) -> list[str]:
    found = each.proposal
    memory = ABSENT if found.memory_bytes is None else f"{found.memory_bytes / 2**30:.1f} GiB"
    return [
        ", ".join(map(str, each.stages)),
        str(each.compression),
        f"{each.tokens:,}",
        f"{found.batch * ranks:,}",
        quantity(found.units_per_s),
        memory,
        found.limit,
    ]
