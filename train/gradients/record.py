"""camse.json, the result of an analysis, and the folder with a file for each cell until then.

{"made": {"date": ..., "versions": {...}},
"facts": {...}, "stages": [{"share": .25, "progress": .2501, "step": 1200, "weights": "1f3b...",
"norm2": [value, low, high], "cells": [{"p": 30, "drop": .5, "cost": 1.0, "ca_mse": [...],
"bias2": [...], "variance": [...], "normalised": {"ca_mse": [...], ...}, "without": [...]}, ...]},
...]}

Intervals are [value, low, high]. "without" is the CA-MSE without each group, for intervals of
differences; older files lack it. CA-MSE multiplies the variance by cost_share. Undefined values,
such as those divided by a ||G||^2 up to 0, are null. No torch.
"""

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.files import whole_file
from accelssl.json_text import parsed
from accelssl.option_names import option_of
from accelssl.pipeline.compression import Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.gradients.estimator import Estimate, Interval, Method, Sums, estimate
from accelssl.train.gradients.grid import Item, cost_of

FORMAT = 1
FIGURES = ("ca_mse", "bias2", "variance")
_DIGITS = 6
_LINE = 640
Facts = dict[str, Any]


@dataclass(frozen=True)
class CellRecord:
    """Figures of one cell by name, raw and divided by ||G||^2 (None if undefined). without_J:
    the raw CA-MSE without each group of images; empty in old files."""

    cell: Compression
    cost: float
    cost_share: float
    raw: dict[str, Interval]
    normalised: dict[str, Interval | None]
    without_J: tuple[float, ...] = ()


@dataclass(frozen=True)
class StageRecord:
    """All cells at a share of the budget. weights: SHA-256 of the network's weights."""

    share: float
    weights: str
    cells: tuple[CellRecord, ...]


@dataclass(frozen=True)
class AnalysisRecord:
    """The content of camse.json. made: date and versions; empty in old files."""

    facts: Facts
    stages: tuple[StageRecord, ...]
    made: dict[str, Any] = field(default_factory=dict)


class CellFolder:
    """The folder OUT.parts of an unfinished analysis, with one file for each cell and share.

    Ranks and later calls of the same command find the finished cells. Files of other facts are
    refused.
    """

    def __init__(self, out: Path, facts: Facts) -> None:
        self._out, self._facts = out, json.loads(json.dumps(facts))
        self.folder = out.with_name(f"{out.name}.parts")

    def prepare(self) -> None:
        """Make the folder. Raise UserError if that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self._out} cannot be written ({error.strerror}).", "Name another --out."
            ) from error

    def is_done(self, item: Item) -> bool:
        path = self._path(item)
        if path.exists():
            self._read(path)  # refuses a cell of another analysis
            return True
        return False

    def write(self, item: Item, stage: dict[str, Any], cell: dict[str, Any]) -> None:
        """Write one cell. stage: the values common to all cells of the share."""
        write_readable(self._path(item), {"facts": self._facts, "stage": stage, "cell": cell})

    def assemble(self, shares: Sequence[float], cells: Sequence[Compression]) -> bool:
        """Write OUT and remove the folder if every cell is there. The last rank succeeds."""
        paths = [[self._path(Item(share, cell)) for cell in cells] for share in shares]
        if not all(path.exists() for of_share in paths for path in of_share):
            return False
        try:
            read = [[self._read(path) for path in of_share] for of_share in paths]
        except FileNotFoundError:  # another rank is removing them too
            return True
        stages = []
        for parts in read:
            stage = parts[0]["stage"]
            if any(part["stage"]["weights"] != stage["weights"] for part in parts):
                raise UserError(
                    f"{self.folder} holds cells of different weights at {stage['share']:g}.",
                    "The run has changed meanwhile: remove the folder and begin anew.",
                )
            norm2 = parts[0]["cell"]["norm2"]
            cells_found = [
                {k: v for k, v in part["cell"].items() if k != "norm2"} for part in parts
            ]
            stages.append(stage | {"norm2": norm2, "cells": cells_found})
        write_readable(self._out, {"made": made_now(), "facts": self._facts, "stages": stages})
        shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def _path(self, item: Item) -> Path:
        return self.folder / f"{item.share:g}-p{item.cell.p}-d{item.cell.drop:g}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        part: dict[str, Any] = parsed(path.read_text())
        refuse_other_facts(self.folder, part["facts"], self._facts)
        return part


def made_now() -> dict[str, Any]:
    """Return the date (UTC) and the versions of the packages that compute gradients."""
    versions = {name: metadata.version(name) for name in ("accelssl", "torch", "timm")}
    return {"date": datetime.now(UTC).date().isoformat(), "versions": versions}


def refuse_other_facts(path: Path, stored: Facts, given: Facts) -> None:
    """Raise UserError if a file or folder belongs to another analysis."""
    given = json.loads(json.dumps(given))
    differing = [name for name in stored | given if stored.get(name) != given.get(name)]
    if differing:
        name = differing[0]
        option = option_of(name, "analyze-gradients")
        raise UserError(
            f"{path} is of an analysis with {option} {stored.get(name)}, not {given.get(name)}.",
            "Give the same options to go on with it, name another --out, or remove it.",
        )


def measured_json(
    config: TrainConfig,
    cell: Compression,
    sums: Sums,
    subbatch: int,
    step_units: float,
    estimator: Method = "paired",
) -> dict[str, Any]:
    """Return a cell of a run as cell_json does, from its sums over sub-batches.

    step_units: cost of the step that the variance is adjusted to.
    """
    cost = cost_of(config, cell)
    found = estimate(sums, subbatch, cost / step_units, estimator)
    return cell_json(cell, cost, cost / step_units, found)


def cell_json(cell: Compression, cost: float, cost_share: float, found: Estimate) -> dict[str, Any]:
    """Return a cell as in camse.json, with "norm2"."""
    return {
        "p": cell.p,
        "drop": cell.drop,
        "cost": _rounded(cost),
        "cost_share": _rounded(cost_share),
        **{name: _triple(getattr(found, name)) for name in FIGURES},
        "normalised": {name: _triple(found.normalised[name]) for name in FIGURES},
        "without": [_rounded(x) for x in found.without_J],
        "norm2": _triple(found.norm2),
    }


def read_record(path: Path) -> AnalysisRecord:
    """Read an analysis. Raise UserError for other files."""
    try:
        content = parsed(path.read_text())
        stages = tuple(map(stage_of, content["stages"]))
        _refuse_other_than_analysed(stages)
        return AnalysisRecord(_facts_of(content), stages, content.get("made", {}))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is no gradient analysis ({_reason(error)}).",
            "Name the file that accelssl analyze-gradients wrote with --out.",
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _refuse_other_than_analysed(stages: Sequence[StageRecord]) -> None:
    """Raise ValueError if shares do not ascend within 0..1, or stages differ in their cells."""
    shares = [stage.share for stage in stages]
    if not shares or not all(a < b for a, b in pairwise([-1e-9, *shares, 1 + 1e-9])):
        raise ValueError(f"the shares of its stages are {shares}")
    cells = [[found.cell for found in stage.cells] for stage in stages]
    if not cells[0] or any(of_stage != cells[0] for of_stage in cells):
        raise ValueError("its stages have no cells, or not the same ones")


def _facts_of(content: dict[str, Any]) -> Facts:
    """Read the facts that a schedule needs. Raise ValueError, KeyError or TypeError if they are
    missing."""
    facts: Facts = content["facts"]
    if not isinstance(facts["algo"], str) or not isinstance(facts["batch"], int):
        raise TypeError("algo is no text, or batch no whole number")
    if facts["batch"] < 1:
        raise ValueError(f"batch {facts['batch']}")
    return facts


def stage_of(stage: dict[str, Any]) -> StageRecord:
    """Read a stage from JSON. Raise KeyError, TypeError or ValueError for other content."""
    cells = tuple(map(_cell, stage["cells"]))
    return StageRecord(float(stage["share"]), str(stage["weights"]), cells)


def _cell(cell: dict[str, Any]) -> CellRecord:
    costs = float(cell["cost"]), float(cell["cost_share"])
    raw = {name: Interval(*map(float, cell[name])) for name in FIGURES}
    without_J = tuple(map(float, cell.get("without", ())))
    figures = [x for found in raw.values() for x in (found.value, found.low, found.high)]
    figures += without_J
    if min(costs) <= 0 or not all(map(math.isfinite, [*costs, *figures])):
        raise ValueError(f"p{cell['p']} d{cell['drop']} has a cost or a figure that makes no sense")
    return CellRecord(
        Compression(int(cell["p"]), float(cell["drop"])),
        *costs,
        raw,
        {name: _interval(cell["normalised"][name]) for name in FIGURES},
        without_J,
    )


def _interval(triple: list[float | None]) -> Interval | None:
    value, low, high = triple
    return None if value is None or low is None or high is None else Interval(value, low, high)


def _triple(interval: Interval) -> list[float | None]:
    return [_rounded(x) for x in (interval.value, interval.low, interval.high)]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def write_readable(path: Path, content: Any) -> None:
    """Write JSON for reading and line-by-line comparison, atomically."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")  # ranks may write the same file
    with whole_file(path, partial) as file:
        file.write((readable(content) + "\n").encode())


def readable(value: Any, depth: int = 0) -> str:
    """Format JSON with short values, such as cells, on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if (len(short) <= _LINE and depth) or not isinstance(value, dict | list):
        return short
    margin, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        rows = [f"{json.dumps(name)}: {readable(v, depth + 1)}" for name, v in value.items()]
        return "{" + margin + f",{margin}".join(rows) + end + "}"
    return "[" + margin + f",{margin}".join(readable(v, depth + 1) for v in value) + end + "]"
