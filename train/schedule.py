"""Which compression when: stages over progress, piecewise constant."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.pipeline.compress.compression import Compression

EXAMPLE = '[{"until": 0.6, "p": 30, "drop": 0.5}, {"until": 1.0, "p": 16, "drop": 0.5}]'


@dataclass(frozen=True)
class Stage:
    """`compression` while progress is below `until`."""

    until: float
    compression: Compression


@dataclass(frozen=True)
class Schedule:
    """Stages in order; the last ends at 1. UserError when they do not ascend to 1."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        ascending = all(b > a for a, b in pairwise([0.0, *ends]))
        if not ends or ends[-1] != 1 or not ascending:
            raise UserError(
                f"The stages of the schedule end at {ends}.",
                "Let `until` ascend from above 0 to exactly 1.0 in the last stage.",
            )

    def at(self, progress: float) -> Stage:
        """The stage at `progress`; from 1 on, the last."""
        return next((s for s in self.stages if progress < s.until), self.stages[-1])

    def to_json(self) -> list[dict[str, float]]:
        """The stages as the schedule file writes them."""
        return [
            {"until": s.until, "p": s.compression.p, "drop": s.compression.drop}
            for s in self.stages
        ]


def constant(compression: Compression) -> Schedule:
    """One stage for the whole run."""
    return Schedule((Stage(1.0, compression),))


def from_json(stages: Any) -> Schedule:
    """A list of {"until", "p", "drop"}, or an object with one as "stages", as accelssl schedule
    writes it. UserError when it is anything else."""
    stages = stages.get("stages") if isinstance(stages, dict) else stages
    try:
        return Schedule(
            tuple(
                Stage(float(s["until"]), Compression(int(s["p"]), float(s["drop"]))) for s in stages
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The schedule is not a list of stages ({type(error).__name__}: {error}).",
            f"Write it like {EXAMPLE}.",
        ) from None


def read_schedule(path: Path) -> Schedule:
    """A JSON file holding a list of stages, alone or as "stages" of an object. UserError when
    unreadable or malformed."""
    try:
        stages = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"The schedule {path} cannot be read ({error}).", f"Write a JSON file like {EXAMPLE}."
        ) from None
    return from_json(stages)
