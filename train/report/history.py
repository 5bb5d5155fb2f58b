"""Read the folder of a training run into one consistent history.

A log may come from a process that was killed and resumed. Steps after the last checkpoint then
appear twice, and only the second time counts. A line may be cut in the middle.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.json_text import parsed
from accelssl.train.evaluate.result_settings import Result
from accelssl.train.evaluate.results import NEAREST, own_result, read_results
from accelssl.train.gradients.decision import Decision, decision_of

Column = npt.NDArray[np.float64]
# A step line needs these; other values may be absent and read as NaN.
NEEDED = ("step", "images", "spent", "elapsed_s", "p", "drop", "keep", "sample_cost")
WANTED = ("epoch", "loss", "lr", "images_per_s", "image_flops")


@dataclass(frozen=True)
class Steps:
    """The logged steps as columns, each float64 of shape (steps,), with `step` increasing.

    `images`, `spent` (budget units) and `elapsed_s` are cumulative over the whole run; `loss`,
    `lr`, `epoch`, `images_per_s` and `image_flops` are NaN where the log has no finite number.
    """

    step: Column
    images: Column
    spent: Column
    elapsed_s: Column
    p: Column
    drop: Column
    keep: Column
    sample_cost: Column
    epoch: Column
    loss: Column
    lr: Column
    images_per_s: Column
    image_flops: Column

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation during training: accuracies in per cent, NaN where not measured."""

    step: float
    spent: float
    elapsed_s: float
    nn1: float
    knn20: float


@dataclass(frozen=True)
class History:
    """A run as recorded in its folder. `ended`: reason of the last end line, or None.

    `evaluation`: nearest neighbours on the run's own set. `results`: everything in evaluation.json.
    `decisions`: those of --schedule auto.
    """

    run: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    evaluation: dict[str, Any]
    steps: Steps
    evaluations: tuple[Evaluation, ...]
    baseline: dict[str, Any]
    resumes: tuple[float, ...]
    ended: str | None
    unreadable_lines: int
    results: tuple[Result, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def budget(self) -> float | None:
        """Return the budget of the run in units, or None if the config has none."""
        return finite(self.config.get("budget"))

    @property
    def accuracies(self) -> tuple[Evaluation, ...]:
        """Return the untrained network, the logged evaluations and the final evaluation, in
        order."""
        points = list(self.evaluations)
        if self.evaluation.get("untrained"):
            points.insert(0, _evaluation(self.evaluation["untrained"], 0.0, 0.0, 0.0))
        step, steps = finite(self.evaluation.get("step")), self.steps
        is_last = len(steps) > 0 and step == steps.step[-1]
        if is_last and self.evaluation.get("trained") and (not points or points[-1].step != step):
            at = steps.step[-1], steps.spent[-1], steps.elapsed_s[-1]
            points.append(_evaluation(self.evaluation["trained"], *at))
        return tuple(points)


def _evaluation(scores: Any, step: float, spent: float, elapsed_s: float) -> Evaluation:
    found = scores if isinstance(scores, dict) else {}
    nn1, knn20 = (finite(found.get(name)) for name in ("nn1", "knn20"))
    return Evaluation(
        step,
        spent,
        elapsed_s,
        math.nan if nn1 is None else nn1,
        math.nan if knn20 is None else knn20,
    )


@dataclass
class _Log:
    """The log while it is read; rows are tuples in the order of NEEDED + WANTED."""

    steps: list[float] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    baseline: dict[str, Any] = field(default_factory=dict)
    resumes: list[float] = field(default_factory=list)
    ended: str | None = None
    unreadable_lines: int = 0


def read_history(run: Path) -> History:
    """Read RUN/config.json and, if they exist, environment.json, evaluation.json, log.jsonl.

    Raise UserError when `run` is not a folder, has no config.json, or a JSON file does not parse.
    Unreadable log lines are skipped and counted.
    """
    if not run.is_dir():
        raise UserError(f"{run} is not a folder.", "Name the folder that training wrote.")
    if not (run / "config.json").is_file():
        raise UserError(
            f"{run} holds no training run: it has no config.json.",
            "Name the folder given to accelssl train as --out.",
        )
    log = _read_log(run / "log.jsonl")
    table = np.array(log.rows, dtype=np.float64).reshape(len(log.rows), len(NEEDED + WANTED))
    results = read_results(run)
    return History(
        run=run,
        config=_read_object(run / "config.json"),
        environment=_read_object(run / "environment.json"),
        evaluation=own_result(results, NEAREST),
        steps=Steps(**dict(zip(NEEDED + WANTED, table.T, strict=True))),
        evaluations=tuple(log.evaluations),
        baseline=log.baseline,
        resumes=tuple(log.resumes),
        ended=log.ended,
        unreadable_lines=log.unreadable_lines,
        results=tuple(results),
        decisions=tuple(log.decisions),
    )


def finite(value: object) -> float | None:
    """Return `value` as a float if it is a finite number (true is not one), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {error}.", "Restore the file, or train into a new folder."
        ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{path} holds no JSON object.", "Restore the file, or train into a new folder."
        )
    return content


def _lines(path: Path) -> Iterator[str]:
    if path.is_file():
        # A write cut by a full disk or a power loss may end inside a character.
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def _read_log(path: Path) -> _Log:
    log = _Log()
    for text in _lines(path):
        if text.isspace():
            continue
        try:
            line = parsed(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not _take(log, line):
            log.unreadable_lines += 1
    return log


def _take(log: _Log, line: dict[str, Any]) -> bool:
    """Add one line to the log. Return false if the line lacks a required value."""
    match line.get("kind"):
        case "step":
            return _take_step(log, line)
        case "eval":
            return _take_evaluation(log, line)
        case "estimate":
            return _take_decision(log, line)
        case "resume":
            at = finite(line.get("step"))
            if at is None:
                return False
            _forget_after(log, at)
            log.resumes.append(at)
            log.ended = None
        case "baseline":
            log.baseline = line
        case "end":
            log.ended = str(line.get("reason", "end"))
    # Ignore other kinds of lines, which other versions may add.
    return True


def _take_step(log: _Log, line: dict[str, Any]) -> bool:
    needed = [finite(line.get(key)) for key in NEEDED]
    if any(value is None for value in needed):
        return False
    step = float(line["step"])
    if log.steps and step <= log.steps[-1]:
        _forget_after(log, step)
        if log.steps and log.steps[-1] == step:
            del log.steps[-1], log.rows[-1]
    wanted = [finite(line.get(key)) for key in WANTED]
    log.steps.append(step)
    log.rows.append(tuple(math.nan if v is None else v for v in needed + wanted))
    log.ended = None
    return True


def _take_evaluation(log: _Log, line: dict[str, Any]) -> bool:
    where = [finite(line.get(key)) for key in ("step", "spent", "elapsed_s")]
    found = [finite(line.get(key)) for key in ("nn1", "knn20")]
    if any(value is None for value in where) or found == [None, None]:
        return False
    point = Evaluation(*(math.nan if value is None else value for value in where + found))
    log.evaluations = [e for e in log.evaluations if e.step < point.step]
    log.evaluations.append(point)
    return True


def _take_decision(log: _Log, line: dict[str, Any]) -> bool:
    try:
        decision = decision_of(line)
    except (KeyError, TypeError, ValueError, UserError):
        return False
    # A run killed before the next checkpoint repeats its last decision.
    log.decisions = [d for d in log.decisions if d.share < decision.share]
    log.decisions.append(decision)
    return True


def _forget_after(log: _Log, step: float) -> None:
    """Drop everything logged after `step`: a resume repeats it."""
    keep = bisect_right(log.steps, step)
    del log.steps[keep:], log.rows[keep:]
    log.evaluations = [point for point in log.evaluations if point.step <= step]
    log.decisions = [decision for decision in log.decisions if decision.step <= step]
