"""Cost of a run in three measures: the paper's units, operations, seconds.

A unit counts tokens only. Attention between all tokens, heads, data and idle time change its real
cost. The three measures are therefore compared.
"""

import math
from dataclasses import dataclass

from accelssl.formats import compression, duration, percent, quantity, times
from accelssl.train.report.history import History
from accelssl.train.report.stage_costs import (
    StageRun,
    Uncompressed,
    stage_runs,
    uncompressed,
    whole_run,
)

NOTABLE = 0.1
HEADS = ("stage", "images", "units", "PFLOP", "training time", "time a unit", "FLOP a unit")


@dataclass(frozen=True)
class Price:
    """The cost of a unit in seconds and in operations; NaN if unknown.

    The seconds exclude start-up, because compilation is independent of units. They need enough
    remaining steps.
    """

    unit_s: float
    unit_flops: float

    def against(self, other: "Price") -> "Price":
        """Return the ratios to another price."""
        return Price(self.unit_s / other.unit_s, self.unit_flops / other.unit_flops)


def price(stage: StageRun) -> Price | None:
    """Return the price of a stage, or None if it spent no units."""
    if stage.spent <= 0:
        return None
    unit_s = stage.steady_s / stage.steady_spent if stage.is_steady else math.nan
    return Price(unit_s, stage.image_flops / stage.sample_cost)


def reference(
    stages: tuple[StageRun, ...], plain: Uncompressed
) -> tuple[str, Price] | tuple[None, None]:
    """Return the price to compare with: uncompressed training if measured, else the most
    expensive stage."""
    if plain.sample_cost and plain.steady_images_per_s:
        flops = math.nan if plain.image_flops is None else plain.image_flops
        unit_s = 1 / (plain.steady_images_per_s * plain.sample_cost)
        return "uncompressed training", Price(unit_s, flops / plain.sample_cost)
    dearest = max(stages, key=lambda stage: stage.sample_cost)
    found = price(dearest)
    if found is None:
        return None, None
    return compression(dearest.p, dearest.drop), found


def rows(stages: tuple[StageRun, ...], plain: Uncompressed) -> list[list[str]]:
    """Return a row of HEADS for each stage and one for all: each amount with its share of the
    run."""
    whole = whole_run(stages)
    lines = [_row(compression(s.p, s.drop), s, whole, stages, plain) for s in stages]
    return [*lines, _row("all stages", whole, whole, stages, plain)] if len(stages) > 1 else lines


def drift_notes(stages: tuple[StageRun, ...], plain: Uncompressed) -> list[str]:
    """Return a sentence for each stage whose time per unit differs by NOTABLE from the reference.

    A further sentence explains time that operations do not.
    """
    against, base = reference(stages, plain)
    notes, is_unexplained = [], False
    for stage in stages:
        here = price(stage)
        if base is None or here is None:
            continue
        ratio = here.against(base)
        if not abs(ratio.unit_s - 1) > NOTABLE:  # also skips NaN
            continue
        operations = ""
        if math.isfinite(ratio.unit_flops):
            operations = f" ({ratio.unit_flops:.2f} times the operations)"
        notes.append(
            f"{compression(stage.p, stage.drop)} took {ratio.unit_s:.2f} times the time per unit "
            f"of {against}{operations}."
        )
        by_operations = ratio.unit_flops if math.isfinite(ratio.unit_flops) else 1.0
        is_unexplained |= ratio.unit_s > (1 + NOTABLE) * by_operations
    if is_unexplained:
        notes.append(
            "Units count encoder tokens only. Decoding, cropping, augmentation and the projection "
            "head are not included. Run accelssl bench-throughput to see the bottleneck."
        )
    return notes


def closing_lines(history: History) -> list[str]:
    """Return the last lines of `accelssl train`: the three sums, and notes on their differences."""
    stages = stage_runs(history)
    if not stages:
        return []
    whole = whole_run(stages)
    spent = [f"{quantity(whole.spent)} units", duration(whole.training_s)]
    if math.isfinite(whole.flops):
        spent.insert(1, f"{_petaflop(whole)} PFLOP")
    lines = [f"spent: {', '.join(spent)}"]
    if history.decisions:
        lines.append(f"choosing compressions, in addition: {beside(history)}")
    return [*lines, *drift_notes(stages, uncompressed(history, stages))]


def beside(history: History) -> str:
    """Return the cost of the estimates of --schedule auto. It counts neither as budget nor as
    training."""
    units = sum(decision.units for decision in history.decisions)
    seconds = sum(decision.seconds for decision in history.decisions)
    share = f" ({percent(100 * units / history.budget)} of the budget)" if history.budget else ""
    return f"{quantity(units)} units{share}, {duration(seconds)}"


def estimates_row(history: History) -> list[str]:
    """Return a row of HEADS for the estimates of --schedule auto."""
    units = sum(decision.units for decision in history.decisions)
    seconds = sum(decision.seconds for decision in history.decisions)
    return ["estimates, in addition", "", quantity(units), "", duration(seconds), "", ""]


def _row(
    name: str,
    stage: StageRun,
    whole: StageRun,
    stages: tuple[StageRun, ...],
    plain: Uncompressed,
) -> list[str]:
    _, base = reference(stages, plain)
    here = price(stage)
    ratio = here.against(base) if here and base else None
    return [
        name,
        _with_share(quantity(stage.images), stage.images, whole.images),
        _with_share(quantity(stage.spent), stage.spent, whole.spent),
        _with_share(_petaflop(stage), stage.flops, whole.flops),
        _with_share(duration(stage.training_s), stage.training_s, whole.training_s),
        times(ratio.unit_s if ratio else None),
        times(ratio.unit_flops if ratio else None),
    ]


def _petaflop(stage: StageRun) -> str:
    return quantity(stage.flops / 1e15)


def _with_share(text: str, part: float, whole: float) -> str:
    return f"{text} ({percent(100 * part / whole)})" if whole > 0 else text
