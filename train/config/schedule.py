"""Schedule of the compression: a piecewise constant function of progress."""

import json
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.json_text import parsed
from accelssl.pipeline.compression import Compression

EXAMPLE = '[{"until": 0.6, "p": 30, "drop": 0.5}, {"until": 1.0, "p": 16, "drop": 0.5}]'


@dataclass(frozen=True)
class Stage:
    """Stage of a schedule, with one `compression` while progress is below `until`."""

    until: float
    compression: Compression


@dataclass(frozen=True)
class Schedule:
    """Stages in ascending order, of which the last ends at 1. Raise UserError for other stages.

    origin: the source of the stages, as words for messages; "" for --patch and --drop.
    method: the method that the stages were made for, if the file states one.
    """

    stages: tuple[Stage, ...]
    origin: str = field(default="", compare=False, repr=False)
    method: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        ascending = all(b > a for a, b in pairwise([0.0, *ends]))
        if not ends or ends[-1] != 1 or not ascending:
            raise UserError(
                f"The stages of the schedule end at {ends}.",
                "Let `until` ascend from above 0 to exactly 1.0 in the last stage.",
            )

    def at(self, progress: float) -> Stage:
        """Return the stage at `progress`, and the last stage from 1 on."""
        return next((s for s in self.stages if progress < s.until), self.stages[-1])

    def __str__(self) -> str:
        return ", ".join(f"{s.compression} until {s.until:g}" for s in self.stages)

    def to_json(self) -> list[dict[str, float]]:
        """Return the stages as in a schedule file."""
        return [
            {"until": s.until, "p": s.compression.p, "drop": s.compression.drop}
            for s in self.stages
        ]


def constant(compression: Compression) -> Schedule:
    """Return a schedule with one stage for the whole run."""
    return Schedule((Stage(1.0, compression),))


def from_json(stages: Any) -> Schedule:
    """Read a list of {"until", "p", "drop"}, or an object with this list as "stages".

    `accelssl schedule` writes such objects. Raise UserError for any other value.
    """
    stages = stages.get("stages") if isinstance(stages, dict) else stages
    if not isinstance(stages, list):
        raise UserError("The schedule is not a list of stages.", f"Write it like {EXAMPLE}.")
    return Schedule(tuple(_stage(stage) for stage in stages))


def _stage(stage: Any) -> Stage:
    named = stage if isinstance(stage, dict) else {}
    values: list[Any] = [named.get(name) for name in ("until", "p", "drop")]
    are_numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
    if not all(are_numbers) or values[1] % 1:
        raise UserError(
            f"The schedule is not a list of stages: {json.dumps(stage)} is none.",
            f'Give it "until", "p" (a whole number) and "drop", as in {EXAMPLE}.',
        )
    until, p, drop = values
    return Stage(_float(until), Compression(int(p), _float(drop)))


def _float(value: float) -> float:
    """Convert a JSON number to float; a whole number too large for a float becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_schedule(path: Path, or_else: str = "") -> Schedule:
    """Read a JSON file with a list of stages, alone or as "stages" of an object.

    or_else: the end of the remedy in the message. Raise UserError, which names the file, if the
    file is unreadable or malformed.
    """
    try:
        stages = parsed(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"The schedule {path} cannot be read: {_reason(error)}.",
            f"Write a JSON file like {EXAMPLE}{or_else}.",
        ) from None
    try:
        made_for = stages.get("method", "") if isinstance(stages, dict) else ""
        method = made_for if isinstance(made_for, str) else ""
        return replace(from_json(stages), origin=f"the schedule {path}", method=method)
    except UserError as error:
        raise UserError(
            f"In {path}: {error.what[0].lower()}{error.what[1:]}", error.remedy
        ) from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "it is not there").lower()
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON from line {error.lineno}, column {error.colno} on"
    return "it is not text" if isinstance(error, UnicodeDecodeError) else f"{error}"
