"""A decision of a run with --schedule auto: when, from which figures, at which cost. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accelssl.formats import duration
from accelssl.pipeline.compression import Compression
from accelssl.train.config.budget import format_units
from accelssl.train.config.schedule import Schedule
from accelssl.train.gradients.choose import best_of, joined, ties_of
from accelssl.train.gradients.record import CellRecord, StageRecord, stage_of


@dataclass(frozen=True)
class Decision:
    """The choice of `cell` from stage.share of the budget on, before the step after `step`.

    stage: the figures of all cells, measured at `progress` on `subbatches` of `subbatch` images,
    for `units` and `seconds` that count neither as budget nor as training. stage_json: the source
    of stage. current: the cell before, None at first.
    """

    stage: StageRecord
    stage_json: dict[str, Any]
    cell: Compression
    current: Compression | None
    step: int
    progress: float
    subbatch: int
    subbatches: int
    units: float
    seconds: float

    @property
    def share(self) -> float:
        return self.stage.share

    @property
    def samples(self) -> int:
        return self.subbatch * self.subbatches

    @property
    def chosen(self) -> CellRecord:
        """Return the figures of `cell`."""
        return next(found for found in self.stage.cells if found.cell == self.cell)

    @property
    def why(self) -> str:
        """Return the reason in words."""
        best, ties = best_of(self.stage).cell, len(ties_of(self.stage))
        of_ties = f"of {ties} statistically equal to the best ({best})"
        if self.cell == self.current:
            return f"kept, one {of_ties}"
        changed = f"in place of {self.current}, which is worse: " if self.current else ""
        return f"{changed}the cheapest {of_ties}"

    def __str__(self) -> str:
        return (
            f"at {100 * self.share:g}% of the budget: {self.cell}, {self.why}; "
            f"{self.samples:,} images in each of {len(self.stage.cells)} compressions, "
            f"{format_units(self.units)} units, {duration(self.seconds)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON with the figures as in camse.json and the values derived from them."""
        return self.stage_json | {
            "p": self.cell.p,
            "drop": self.cell.drop,
            "current": None if self.current is None else [self.current.p, self.current.drop],
            "step": self.step,
            "progress": self.progress,
            "samples": self.samples,
            "subbatch": self.subbatch,
            "subbatches": self.subbatches,
            "units": self.units,
            "seconds": self.seconds,
            "why": self.why,
        }


def decision_of(content: dict[str, Any]) -> Decision:
    """Read a decision from JSON. Raise KeyError, TypeError or ValueError for other content."""
    stage, cell = stage_of(content), Compression(int(content["p"]), float(content["drop"]))
    if cell not in [found.cell for found in stage.cells]:
        raise ValueError(f"{cell} is not among the cells")
    return Decision(
        stage,
        {name: content[name] for name in ("share", "weights", "norm2", "cells")},
        cell,
        None if content["current"] is None else Compression(*content["current"]),
        int(content["step"]),
        float(content["progress"]),
        int(content["subbatch"]),
        int(content["subbatches"]),
        float(content["units"]),
        float(content["seconds"]),
    )


def schedule_of(decisions: Sequence[Decision]) -> Schedule:
    """Return the schedule from each decision to the next; the last one lasts to the end."""
    ends = [decision.share for decision in decisions[1:]]
    return joined([*ends, 1.0], [decision.cell for decision in decisions])
