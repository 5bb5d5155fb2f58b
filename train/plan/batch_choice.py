"""The batches to try before a run, and the one to take. No torch.

A batch here is the images of one rank. The caller supplies the function that times it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from accelssl.errors import UserError

AUTO = "auto"
GROWTH = 1.05
"""Units per second that differ by less than this factor count as equal."""

Limit = Literal["speed", "memory", "images", "budget", "time"]


def parse_batch(text: str | None) -> int | str | None:
    """Parse --batch: a number of images, AUTO, or None for the default. Raise UserError for others.

    >>> parse_batch("512"), parse_batch("auto"), parse_batch(None)
    (512, 'auto', None)
    """
    if text is None or text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"--batch {text!r} is no whole number.",
            "Say how many images a step takes, for example --batch 512, or --batch auto.",
        ) from None


@dataclass(frozen=True)
class Trial:
    """A tried batch. took_s includes compilation.

    units_per_s: None if the batch does not fit. memory_bytes: None on a CPU, and if unknown.
    """

    batch: int
    units_per_s: float | None
    memory_bytes: int | None
    took_s: float


Measure = Callable[[int], Trial]


@dataclass(frozen=True)
class Ceiling:
    """The largest sensible batch, and the reason of the limit."""

    batch: int
    limit: Limit


@dataclass(frozen=True)
class Trials:
    """The trials of one stage on one rank: doubling batches, and the reason to stop."""

    tried: tuple[Trial, ...]
    limit: Limit

    @property
    def proposed(self) -> int | None:
        """Return the smallest batch that is as fast as the fastest, or None if the first does
        not fit."""
        rates = {t.batch: t.units_per_s for t in self.tried if t.units_per_s is not None}
        enough = max(rates.values(), default=0.0) / GROWTH
        return next((batch for batch, rate in rates.items() if rate > enough), None)

    def at(self, batch: int) -> Trial:
        return next(trial for trial in self.tried if trial.batch == batch)

    def fits(self, batch: int) -> bool | None:
        """Return true if the batch fits the memory, None if it was not tried."""
        for trial in self.tried:
            if trial.batch == batch or (trial.units_per_s is None and trial.batch < batch):
                return trial.units_per_s is not None
        return None


def try_batches(measure: Measure, first: int, ceiling: Ceiling, enough_s: float) -> Trials:
    """Try `first` and its doubles until speed stops growing, memory or time runs out, or the
    ceiling is reached.

    With a ceiling below `first`, begin with the largest power of two under it. After enough_s no
    other batch is tried, but at least two are.
    """
    batch = min(first, 1 << (ceiling.batch.bit_length() - 1))
    tried: list[Trial] = []
    while True:
        before = tried[-1].units_per_s if tried else None
        trial = measure(batch)
        tried.append(trial)
        if limit := _limit(trial, before, ceiling):
            return Trials(tuple(tried), limit)
        if len(tried) > 1 and sum(each.took_s for each in tried) >= enough_s:
            return Trials(tuple(tried), "time")
        batch *= 2


def _limit(trial: Trial, before: float | None, ceiling: Ceiling) -> Limit | None:
    if trial.units_per_s is None:
        return "memory"
    if before is not None and trial.units_per_s < GROWTH * before:
        return "speed"
    return ceiling.limit if 2 * trial.batch > ceiling.batch else None


@dataclass(frozen=True)
class Proposal:
    """The batch that a stage proposes for each rank: the smallest over ranks.

    units_per_s: of all ranks together, without communication. memory_bytes: of the rank that needs
    the most.
    """

    batch: int
    units_per_s: float
    memory_bytes: int | None
    limit: Limit


def agree(of_ranks: Sequence[Trials]) -> Proposal | None:
    """Combine the ranks' proposals for a stage. Return None if the first batch does not fit a
    rank."""
    proposed = [trials.proposed for trials in of_ranks]
    known = [batch for batch in proposed if batch is not None]
    if len(known) < len(proposed):
        return None
    batch = min(known)
    there = [
        trials.at(batch) for trials in of_ranks
    ]  # all ranks began with the same batch and tried this one
    memory = [trial.memory_bytes for trial in there if trial.memory_bytes is not None]
    return Proposal(
        batch,
        sum(trial.units_per_s or 0.0 for trial in there),
        max(memory, default=None),
        of_ranks[known.index(batch)].limit,
    )


def largest_fitting(proposals: Iterable[Proposal], fits: Callable[[int], bool]) -> int:
    """Return the largest proposed batch that fits all stages by `fits`.

    The smallest is not checked: each stage has been tried with it.
    """
    *larger, smallest = sorted({proposal.batch for proposal in proposals}, reverse=True)
    return next((batch for batch in larger if fits(batch)), smallest)
