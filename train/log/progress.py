"""Displays that follow the log of a run: progress bar, notice of collapse, TensorBoard."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from accelssl.formats import duration
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.progress_lines import line_is_due
from accelssl.train.config.budget import format_units
from accelssl.train.config.config import TrainConfig
from accelssl.train.gradients.decision import decision_of
from accelssl.train.log.log import Watcher

COLLAPSED = 0.03
"""Spread of features (see Objective) below which a run has collapsed.

Two images then have a mean cosine above 0.999. An untrained network has a spread of 0.7. The limit
is ten times the spread that bfloat16 rounding alone gives to copies of one image.
"""
EXTREME_ENTROPY = 0.01
LONG = 0.05
"""Share of the budget after which an extreme entropy of DINO's keys counts as a collapse.

An entropy over prototypes is extreme within EXTREME_ENTROPY of 0 or of the maximum, as a fraction
of the maximum.
"""

UNIFORM = "all prototypes are equally near to every image"
SHARPER = "a lower --teacher-temp, 0.04 for example"
"""Remedy for UNIFORM: keys that are sharper than queries move the prototypes apart."""

# Fields that give the position of a line in the run. TensorBoard gets no curves of them.
_WHERE = frozenset(("step", "epoch", "images", "progress", "elapsed_s"))


class Terminal(Console):
    """Console on standard error. After a broken pipe it prints nothing and the run continues."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True


@contextmanager
def progress_bar(total: float, console: Console, *, chooses: bool = False) -> Iterator[Watcher]:
    """Show a progress bar over the budget; without a terminal, print a line every half minute.

    chooses: True if the run chooses its compressions itself; a message then names more remedies.
    """
    columns = (
        TextColumn("{task.fields[stage]:>9}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%  loss {task.fields[loss]}  {task.fields[rates]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, stage="", loss="", rates="")
        is_due = line_is_due()

        def watch(line: dict[str, Any]) -> None:
            if line["kind"] == "step":
                shown: dict[str, Any] = {
                    "stage": f"p{line['p']} d{line['drop']:g}",
                    "loss": f"{line['loss']:.3f}",
                    "rates": f"{line['images_per_s']:,.0f} images/s  "
                    f"{line['units_per_s']:,.0f} units/s",
                }
                bar.update(task, completed=min(line["spent"], total), **shown)
                if bar.disable and is_due():
                    console.print(_plain(line, shown, total))
            elif line["kind"] == "eval":
                console.print(
                    f"nn1 {line['nn1']:.1f}%  knn20 {line['knn20']:.1f}%  "
                    f"at {line['progress']:.0%} of the budget"
                )
            elif line["kind"] == "estimating":
                console.print(f"at {line['share']:.0%} of the budget: measuring gradients")
            elif line["kind"] == "estimate":
                console.print(str(decision_of(line)), soft_wrap=True)
            elif line["kind"] == "loader_limits":
                console.print(_loader_limits(line, chooses))

        yield watch


class CollapseNotice:
    """Watcher that prints one notice when the features or the prototypes of a run collapse."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._console, self._has_told = console, False
        self._most = math.log(config.prototypes)
        self._extreme_since: tuple[str, float] | None = None

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] != "step" or self._has_told:
            return
        if finding := self._finding(line):
            self._has_told = True
            self._console.print(
                f"Step {line['step']}: {finding}: the run has collapsed. Start another with "
                f"{SHARPER if UNIFORM in finding else 'a lower --lr or a longer --warmup'}."
            )

    def _finding(self, line: dict[str, Any]) -> str | None:
        if line["spread"] < COLLAPSED:
            return (
                f"all images have nearly the same features (spread {line['spread']:.3f}, below "
                f"{COLLAPSED:g})"
            )
        extreme = self._extreme(line.get("teacher_entropy"))
        if extreme is None:
            self._extreme_since = None
        elif self._extreme_since is None or self._extreme_since[0] != extreme:
            self._extreme_since = extreme, line["progress"]
        elif line["progress"] - self._extreme_since[1] >= LONG:
            return f"{extreme} (entropy {line['teacher_entropy']:.2f} of {self._most:.2f})"
        return None

    def _extreme(self, entropy: float | None) -> str | None:
        """Return the kind of collapse that an entropy shows, or None."""
        if entropy is None:
            return None
        if entropy > (1 - EXTREME_ENTROPY) * self._most:
            return UNIFORM
        if entropy < EXTREME_ENTROPY * self._most:
            return "each image has one prototype and no other"
        return None


def _loader_limits(line: dict[str, Any], chooses: bool) -> str:
    said = (
        f"p{line['p']} d{line['drop']:g}: the loader limits this stage: {line['late']:.0%} of the "
        f"batches come late, at {line['images_per_s']:,.0f} images/s. More --threads, faster "
        "storage or smaller pictures (shard-imagenet --short-side) help; more drop does not."
    )
    if chooses and Compression(line["p"], line["drop"]) != UNCOMPRESSED:
        said += " In another run --auto-patches and --auto-drops can leave such compressions out."
    return said


def _plain(line: dict[str, Any], shown: dict[str, str], total: float) -> str:
    left_s = max(0.0, total - line["spent"]) / max(line["units_per_s"], 1e-9)
    return (
        f"{line['progress']:4.0%} of {format_units(total)} units  {shown['stage']}  "
        f"loss {shown['loss']}  {shown['rates']}  {duration(left_s)} left"
    )


def tensorboard(run: Path) -> Watcher | None:
    """Return a watcher that writes TensorBoard events, or None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    _hush_its_thread()
    writer = SummaryWriter(str(run / "tensorboard"))

    def watch(line: dict[str, Any]) -> None:
        if line["kind"] in ("step", "eval"):
            for name, value in line.items():
                if isinstance(value, int | float) and name not in _WHERE:
                    writer.add_scalar(name, value, line["step"])
        else:
            writer.flush()

    return watch


def _hush_its_thread() -> None:
    """Suppress OSError tracebacks of TensorBoard's writer thread; the watcher raises the error."""
    others = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        of_tensorboard = type(failure.thread).__module__.startswith("tensorboard.")
        if not (of_tensorboard and isinstance(failure.exc_value, OSError)):
            others(failure)

    threading.excepthook = hook
