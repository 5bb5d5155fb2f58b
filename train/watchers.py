"""Who looks on while a run logs: a progress bar on the terminal, TensorBoard."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from accelssl.train.budget import format_units
from accelssl.train.log import Watcher

PLAIN_LINE_S = 30.0
COLLAPSED = 0.03
"""A spread of features (see Objective) below which a run has failed: ten times what bfloat16's
rounding alone makes of one image, where an untrained network has 0.7. Two images then have a cosine
above 0.999 on average."""


class Terminal(Console):
    """Standard error. When nobody reads it any more it falls silent; the run goes on."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True


@contextmanager
def progress_bar(total: float, console: Console) -> Iterator[Watcher]:
    """A bar over the budget on a terminal; elsewhere a plain line every half minute."""
    columns = (
        TextColumn("{task.fields[stage]:>9}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%  loss {task.fields[loss]}  {task.fields[rates]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, stage="", loss="", rates="")
        printed_at = [time.perf_counter()]
        has_told = False

        def watch(line: dict[str, Any]) -> None:
            nonlocal has_told
            if line["kind"] == "step":
                if line["spread"] < COLLAPSED and not has_told:
                    has_told = True
                    console.print(_collapsed(line))
                shown: dict[str, Any] = {
                    "stage": f"p{line['p']} d{line['drop']:g}",
                    "loss": f"{line['loss']:.3f}",
                    "rates": f"{line['images_per_s']:,.0f} images/s  "
                    f"{line['units_per_s']:,.0f} units/s",
                }
                bar.update(task, completed=min(line["spent"], total), **shown)
                if bar.disable and time.perf_counter() - printed_at[0] >= PLAIN_LINE_S:
                    printed_at[0] = time.perf_counter()
                    console.print(_plain(line, shown, total))
            elif line["kind"] == "eval":
                console.print(
                    f"nn1 {line['nn1']:.1f}%  knn20 {line['knn20']:.1f}%  "
                    f"at {line['progress']:.0%} of the budget"
                )
            elif line["kind"] == "loader_limits":
                console.print(_loader_limits(line))

        yield watch


def _collapsed(line: dict[str, Any]) -> str:
    return (
        f"Step {line['step']}: all images have nearly the same features (spread "
        f"{line['spread']:.3f}, below {COLLAPSED:g}): the run has collapsed. Start another with a "
        "lower --lr or a longer --warmup."
    )


def _loader_limits(line: dict[str, Any]) -> str:
    return (
        f"p{line['p']} d{line['drop']:g}: the loader limits this stage: {line['late']:.0%} of the "
        f"batches come late, at {line['images_per_s']:,.0f} images/s. More --threads, faster "
        "storage or smaller pictures (shard-imagenet --short-side) help; more drop does not."
    )


def _plain(line: dict[str, Any], shown: dict[str, str], total: float) -> str:
    left_s = max(0.0, total - line["spent"]) / max(line["units_per_s"], 1e-9)
    return (
        f"{line['progress']:4.0%} of {format_units(total)} units  {shown['stage']}  "
        f"loss {shown['loss']}  {shown['rates']}  {left_s / 60:.1f} min left"
    )


def tensorboard(run: Path) -> Watcher | None:
    """A watcher that writes TensorBoard events, or None when TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer = SummaryWriter(str(run / "tensorboard"))

    def watch(line: dict[str, Any]) -> None:
        if line["kind"] in ("step", "eval"):
            for name in (
                "loss",
                "spread",
                "lr",
                "spent",
                "images_per_s",
                "units_per_s",
                "nn1",
                "knn20",
            ):
                if name in line:
                    writer.add_scalar(name, line[name], line["step"])
        else:
            writer.flush()

    return watch
