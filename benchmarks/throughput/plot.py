"""The result of bench-throughput as a picture: for each model its speed-ups and its rates."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accelssl.benchmarks.throughput.result import ThroughputBench
from accelssl.benchmarks.throughput.row import DECODER, LOADER, Row
from accelssl.train.report.figures import BLUE, GRID, INK, MUTED, ORANGE, TEAL

PALE = "#b9cdea"
WIDTH_IN, HEIGHT_IN, DPI = 6.2, 6.6, 160
BAR = 0.38


def write_plot(bench: ThroughputBench, path: Path) -> None:
    """Write a PNG with a column for each model of `bench`; `bench` must have rows."""
    models = list(dict.fromkeys(row.model for row in bench.rows))
    figure = Figure(figsize=(WIDTH_IN * len(models), HEIGHT_IN), layout="constrained")
    axes = figure.subplots(2, len(models), squeeze=False)
    for column, model in enumerate(models):
        rows = [row for row in bench.rows if row.model == model]
        axes[0, column].set_title(model, color=INK, fontsize=11, loc="left", pad=24)
        _speed_ups(axes[0, column], bench, rows)
        _rates(axes[1, column], bench, rows)
    where = f"{bench.environment['device']}, batches of {bench.batch} pairs"
    figure.suptitle(where, color=MUTED, fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=DPI)


def _speed_ups(axes: Axes, bench: ThroughputBench, rows: list[Row]) -> None:
    """Counted and realised speed-up; of a model without an uncompressed row there is none."""
    counted, realised = [bench.counted(r) for r in rows], [bench.realised(r) for r in rows]
    _frame(axes, rows, "speed-up against uncompressed")
    if not any(counted):
        axes.text(0.5, 0.5, "no uncompressed row", transform=axes.transAxes, ha="center")
        return
    _bars(axes, counted, -BAR / 2, PALE, "counted", _ratio)
    _bars(axes, realised, BAR / 2, BLUE, "realised, live", _ratio)
    _legend(axes)


def _rates(axes: Axes, bench: ThroughputBench, rows: list[Row]) -> None:
    """Images a second of step and live run, and what decoder and loader could give."""
    _frame(axes, rows, "images/s")
    axes.yaxis.set_major_formatter(lambda value, place: _short(value))
    _bars(axes, [r.pairs / r.synthetic.median_s for r in rows], -BAR / 2, PALE, "step", _short)
    live = [r.pairs / r.live.median_s if r.live else None for r in rows]
    _bars(axes, live, BAR / 2, BLUE, "live", _short)
    for source, colour in ((DECODER, TEAL), (LOADER, ORANGE)):
        found = bench.source(source)
        if found:
            rate = min(one.images_per_s for one in found)
            label = f"{source} alone, {rate:,.0f}"
            axes.axhline(rate, color=colour, linewidth=1.3, linestyle="--", label=label)
    _legend(axes)


def _bars(
    axes: Axes,
    values: Sequence[float | None],
    offset: float,
    colour: str,
    label: str,
    text_of: Callable[[float], str],
) -> None:
    places = [i + offset for i, value in enumerate(values) if value is not None]
    there = [value for value in values if value is not None]
    if there:
        bars = axes.bar(places, there, BAR, color=colour, label=label, zorder=2)
        texts = [text_of(value) for value in there]
        # In front of the lines of decoder and loader, which may run through them.
        beneath = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.bar_label(bars, texts, fontsize=7, color=INK, padding=2, bbox=beneath, zorder=3)


def _ratio(value: float) -> str:
    return f"{value:.1f}"


def _short(rate: float) -> str:
    return f"{rate / 1e3:.3g}k" if rate >= 1e3 else f"{rate:.3g}"


def _frame(axes: Axes, rows: list[Row], label: str) -> None:
    names = [f"{row.compression}\n{row.keep} kept" for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8, color=INK)
    axes.set_ylabel(label, color=INK, fontsize=9)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8, zorder=0)
    axes.margins(y=0.16)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _legend(axes: Axes) -> None:
    # Above the frame: the tallest bars and the lines reach any corner of it.
    place: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (-0.01, 1.0),
        "borderaxespad": 0.2,
    }
    axes.legend(**place, ncols=4, frameon=False, fontsize=8, labelcolor=INK, columnspacing=1.2)
