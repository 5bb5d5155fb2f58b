"""The schedule of an analysis: at each stage the compression with the least CA-MSE. No torch.

Cells that cannot be told from the least are as good as it, and the cheapest of them is taken. A
cell can be told from it where the interval of their difference is above 0: on the same images that
is much narrower than their own, which may overlap although one is plainly worse. A schedule of the
paper goes from high to low compression; noise may say otherwise, so that by default costs may only
rise: of all such sequences the one that gives away least.
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
"""Into which an interpolated schedule cuts the way from one analysed share to the next."""

_PLACES = {"run", "data"}
_Loss = tuple[float, float]  # what is given away, then the cost


def chosen_cells(record: AnalysisRecord, *, rises: bool = True) -> list[CellRecord]:
    """One for each stage. rises: no stage is cheaper than the one before it."""
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
    """The cell for a run that has `current`, or None yet.

    It stays with `current` while that cannot be told from the best, so that noise does not change
    it to and fro; else it takes the cheapest that cannot.
    """
    ties = ties_of(stage)
    kept = [cell for cell in ties if cell.cell == current]
    return kept[0] if kept else min(ties, key=lambda cell: cell.cost)


def schedule_of(
    record: AnalysisRecord, chosen: Sequence[CellRecord], between: Between = "steps"
) -> Schedule:
    """A compression changes half-way between two analysed shares; "interpolated", in PIECES steps
    from one share to the next, by the cells whose cost lies best on a straight line of log cost."""
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
    """What --schedule of a run takes, with what it was chosen from."""
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
    """Run and shard set by name, without the folders that only one machine has."""
    named = {name: str(facts[name]).rstrip("/").rpartition("/")[2] for name in _PLACES & set(facts)}
    return facts | named


def ties_of(stage: StageRecord) -> list[CellRecord]:
    """The least and all that cannot be told from it."""
    least = best_of(stage)
    return [cell for cell in stage.cells if not _is_worse(cell, least)]


def best_of(stage: StageRecord) -> CellRecord:
    """The one with the least CA-MSE."""
    return min(stage.cells, key=lambda cell: cell.raw["ca_mse"].value)


def _is_worse(cell: CellRecord, least: CellRecord) -> bool:
    """By their difference. Where an analysis did not note that, by whether intervals overlap."""
    one, other = cell.raw["ca_mse"], least.raw["ca_mse"]
    if len(cell.without_J) != len(least.without_J) or len(cell.without_J) < 2:
        return not one.overlaps(other)
    return excess(one.value, cell.without_J, other.value, least.without_J).low > 0


def _losses(stage: StageRecord) -> list[_Loss]:
    """Of each cell, what it gives away against the least, in units of the stage's mean CA-MSE:
    nothing where it ties."""
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
    """Of the cells that are best for their cost, both stages weighed, the nearest in log cost."""
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
    """A stage up to each end, but neighbours of the same compression as one."""
    stages = [
        Stage(end, cell)
        for place, (end, cell) in enumerate(zip(ends, cells, strict=True))
        if place + 1 == len(cells) or cells[place + 1] != cell
    ]
    return Schedule(tuple(stages))
