"""The schedule of an analysis: at each stage the compression with the least CA-MSE. No torch.

A cell is worse than the best if the interval of their CA-MSE difference is above 0. On the same
images this interval is much narrower than the cells' own intervals. All other cells tie with the
best, and the cheapest of them is chosen. The paper's schedules go from high to low compression, but
noise may suggest otherwise. By default costs may therefore only rise, and the sequence with the
smallest total loss is chosen.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log
from statistics import fmean
from typing import Any, Literal, get_args

from accelssl.pipeline.compression import Compression
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.gradients.estimator import excess
from accelssl.train.gradients.record import AnalysisRecord, CellRecord, Facts, StageRecord

Between = Literal["steps", "interpolated"]
BETWEEN: tuple[Between, ...] = get_args(Between)
PIECES = 4
"""Steps of an interpolated schedule between two analysed shares."""

_PLACES = {"run", "data"}
_Loss = tuple[float, float]  # excess over the best, then cost


def chosen_cells(record: AnalysisRecord, *, rises: bool = True) -> list[CellRecord]:
    """Choose one cell for each stage. rises: no stage is cheaper than the one before it."""
    paths: list[tuple[_Loss, list[CellRecord]]] = [((0.0, 0.0), [])]
    for stage in record.stages:
        longer = []
        for cell, loss in zip(stage.cells, _losses(stage), strict=True):
            before = [p for p in paths if not (rises and p[1]) or p[1][-1].cost <= cell.cost]
            if before:
                (given, cost), path = min(before, key=lambda p: p[0])
                longer.append(((given + loss[0], cost + loss[1]), [*path, cell]))
        paths = longer
    return min(paths, key=lambda p: p[0])[1]


def chosen_now(stage: StageRecord, current: Compression | None = None) -> CellRecord:
    """Choose the cell for a run that has `current`, or None at first.

    The run keeps `current` if it ties with the best, so that noise does not switch cells. Otherwise
    it takes the cheapest cell that ties.
    """
    ties = ties_of(stage)
    kept = [cell for cell in ties if cell.cell == current]
    return kept[0] if kept else min(ties, key=lambda cell: cell.cost)


def schedule_of(
    record: AnalysisRecord, chosen: Sequence[CellRecord], between: Between = "steps"
) -> Schedule:
    """Return the schedule of the chosen cells.

    "steps": the compression changes half-way between two analysed shares. "interpolated": it
    changes in PIECES steps, by the cells whose cost is nearest to a line of log cost.
    """
    shares = [stage.share for stage in record.stages]
    if between == "steps" or len(shares) == 1:
        ends = [(a + b) / 2 for a, b in pairwise(shares)]
        return joined(_rounded([*ends, 1.0]), [cell.cell for cell in chosen])
    ends, cells = [shares[0]] if shares[0] else [], [chosen[0].cell] if shares[0] else []
    for place, (start, stop) in enumerate(pairwise(shares)):
        ways = record.stages[place : place + 2]
        for piece in range(PIECES):
            part = (piece + 0.5) / PIECES
            ends.append(start + (stop - start) * (piece + 1) / PIECES)
            cells.append(_between(ways, chosen[place], chosen[place + 1], part))
    if shares[-1] < 1:
        ends, cells = [*ends, 1.0], [*cells, chosen[-1].cell]
    return joined(_rounded(ends), cells)


def schedule_json(
    record: AnalysisRecord, schedule: Schedule, chosen: Sequence[CellRecord], more: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of a schedule file: the schedule and the figures behind it."""
    return {
        "stages": schedule.to_json(),
        **more,
        "chosen": [
            {
                "share": stage.share,
                "weights": stage.weights,
                "p": cell.cell.p,
                "drop": cell.cell.drop,
                "cost": cell.cost,
                "ca_mse": vars(cell.raw["ca_mse"]),
                "ties": [str(tied.cell) for tied in ties_of(stage)],
            }
            for stage, cell in zip(record.stages, chosen, strict=True)
        ],
        "analysis": without_places(record.facts),
        "made": record.made,
        "values": [
            {
                "share": stage.share,
                "ca_mse": {str(cell.cell): cell.raw["ca_mse"].value for cell in stage.cells},
            }
            for stage in record.stages
        ],
    }


def without_places(facts: Facts) -> Facts:
    """Return the facts with run and shard set by name, without their folders."""
    named = {name: str(facts[name]).rstrip("/").rpartition("/")[2] for name in _PLACES & set(facts)}
    return facts | named


def ties_of(stage: StageRecord) -> list[CellRecord]:
    """Return the best cell and all that tie with it."""
    least = best_of(stage)
    return [cell for cell in stage.cells if not _is_worse(cell, least)]


def best_of(stage: StageRecord) -> CellRecord:
    """Return the cell with the least CA-MSE."""
    return min(stage.cells, key=lambda cell: cell.raw["ca_mse"].value)


def _is_worse(cell: CellRecord, least: CellRecord) -> bool:
    """Compare by the interval of the difference; in old analyses without it, by overlapping
    intervals."""
    one, other = cell.raw["ca_mse"], least.raw["ca_mse"]
    if len(cell.without_J) != len(least.without_J) or len(cell.without_J) < 2:
        return not one.overlaps(other)
    return excess(one.value, cell.without_J, other.value, least.without_J).low > 0


def _losses(stage: StageRecord) -> list[_Loss]:
    """Return each cell's excess over the best in units of the stage's mean CA-MSE; 0 for ties."""
    least, scale, ties = best_of(stage).raw["ca_mse"], _scale(stage), ties_of(stage)
    return [
        (
            0.0 if cell in ties else (cell.raw["ca_mse"].value - least.value) / scale,
            cell.cost,
        )
        for cell in stage.cells
    ]


def _scale(stage: StageRecord) -> float:
    return fmean(abs(cell.raw["ca_mse"].value) for cell in stage.cells) or 1.0


def _between(
    ways: Sequence[StageRecord], first: CellRecord, last: CellRecord, part: float
) -> Compression:
    """Return the cell nearest in log cost, among cells that are best for their cost over both
    stages."""
    target = (1 - part) * log(first.cost) + part * log(last.cost)
    error = {
        cell.cell: (1 - part) * cell.raw["ca_mse"].value / _scale(ways[0]) for cell in ways[0].cells
    }
    for cell in ways[1].cells:
        error[cell.cell] += part * cell.raw["ca_mse"].value / _scale(ways[1])
    low, high = sorted((first.cost, last.cost))
    allowed = [cell for cell in ways[0].cells if low <= cell.cost <= high]
    front = [
        cell
        for cell in allowed
        if cell.cell in (first.cell, last.cell)
        or not any(o.cost <= cell.cost and error[o.cell] < error[cell.cell] for o in allowed)
    ]
    return min(front, key=lambda c: (abs(log(c.cost) - target), error[c.cell])).cell


def _rounded(ends: Sequence[float]) -> list[float]:
    return [round(end, 6) for end in ends]


def joined(ends: Sequence[float], cells: Sequence[Compression]) -> Schedule:
    """Return a schedule with a stage up to each end; neighbours with the same compression are
    merged."""
    stages = [
        Stage(end, cell)
        for place, (end, cell) in enumerate(zip(ends, cells, strict=True))
        if place + 1 == len(cells) or cells[place + 1] != cell
    ]
    return Schedule(tuple(stages))
