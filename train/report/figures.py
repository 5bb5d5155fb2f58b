"""Plots of a report as inline SVG, over bands that show the compression."""

import io
import math
import re
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from accelssl.formats import compression, quantity
from accelssl.train.report.curves import thinned, trend
from accelssl.train.report.history import History, finite
from accelssl.train.report.stage_costs import StageRun

INK, MUTED, GRID = "#1f2933", "#66727f", "#e3e7ec"
BLUE, ORANGE, TEAL = "#1d5fbf", "#c2570c", "#0b7a75"
WIDTH_IN, HEIGHT_IN = 5.2, 3.1
# From few tokens (pale) to many (dark): darker bands cost more per image.
TINTS = ("#f0f4fb", "#e0eaf8", "#d0e0f5", "#c0d5f1", "#b0cbee", "#a0c0ea")
TIME_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
SUPERSCRIPT = str.maketrans("-0123456789", "\N{SUPERSCRIPT MINUS}⁰¹²³⁴⁵⁶⁷⁸⁹")

By = Literal["budget", "time"]


@dataclass(frozen=True)
class Clock:
    """A horizontal axis: budget units, or training time in the unit of time that suits it."""

    by: By
    label: str
    per_unit: float
    end: float

    def of(self, spent: Any, elapsed_s: Any) -> Any:
        """Return a position (a number or a column) on this axis."""
        return spent if self.by == "budget" else elapsed_s / self.per_unit

    def bounds(self, stage: StageRun) -> tuple[float, float]:
        """Return the start and the end of a stage on this axis."""
        return (
            float(self.of(stage.spent_from, stage.elapsed_from_s)),
            float(self.of(stage.spent_to, stage.elapsed_to_s)),
        )


def clock(history: History, by: By) -> Clock:
    """Return the axis for a run with at least one step. The budget axis extends to the whole
    budget."""
    if by == "budget":
        end = max(float(history.steps.spent[-1]), history.budget or 0.0)
        return Clock("budget", "budget spent (units)", 1.0, end)
    total_s = float(history.steps.elapsed_s[-1])
    per_unit, name = next((unit for unit in TIME_UNITS if total_s / unit[0] <= 240), TIME_UNITS[-1])
    return Clock("time", f"training time ({name})", per_unit, total_s / per_unit)


def stage_tints(stages: tuple[StageRun, ...]) -> tuple[str, ...]:
    """Return a colour for each stage: one for each compression, darker for higher cost."""
    costs = sorted({stage.sample_cost for stage in stages})
    top = len(TINTS) - 1
    places = {cost: round(i * top / max(1, len(costs) - 1)) for i, cost in enumerate(costs)}
    return tuple(TINTS[places[stage.sample_cost]] for stage in stages)


def loss_figure(history: History, stages: tuple[StageRun, ...], by: By) -> str:
    """Draw the loss of each logged step, faint, and the trend within a stage."""
    steps, axis = history.steps, clock(history, by)
    figure, axes = _framed(stages, axis, "loss")
    x = axis.of(steps.spent, steps.elapsed_s)
    dot = "o" if len(steps) < 3 else None
    axes.plot(*thinned(x, steps.loss), color=BLUE, alpha=0.4, linewidth=0.8, label="each step")
    median = trend(x, steps.loss, _new_stage(history))
    axes.plot(*median, color=BLUE, linewidth=1.8, marker=dot, label="moving median")
    _zoom(axes, steps.loss)
    return _svg(figure, f"loss-{by}", f"Loss against {axis.label}")


def accuracy_figure(history: History, stages: tuple[StageRun, ...], by: By) -> str:
    """Draw nn1 and knn20 of every evaluation, with lines for the untrained network and raw
    pixels."""
    axis, points = clock(history, by), history.accuracies
    figure, axes = _framed(stages, axis, "accuracy (%)")
    x = [axis.of(point.spent, point.elapsed_s) for point in points]
    for name, colour, marker in (("knn20", TEAL, "s"), ("nn1", BLUE, "o")):
        y = [getattr(point, name) for point in points]
        if np.isfinite(y).any():
            axes.plot(
                x, y, color=colour, marker=marker, markersize=3.5, linewidth=1.8, label=name,
                clip_on=False,
            )  # fmt: skip
    for who, name, style in (
        ("pixels", "nn1 of raw pixels", ":"),
        ("untrained", "nn1 untrained", "--"),
    ):
        level = _accuracy(history, who)
        if level is not None:
            axes.axhline(level, color=MUTED, linestyle=style, linewidth=1.3, label=name)
    axes.set_ylim(bottom=0.0)
    return _svg(figure, f"accuracy-{by}", f"Accuracy against {axis.label}")


def rate_figure(history: History, stages: tuple[StageRun, ...]) -> str:
    """Draw the learning rate against the budget."""
    steps, axis = history.steps, clock(history, "budget")
    top = float(np.nanmax(np.append(steps.lr, 0.0)))
    exponent = math.floor(math.log10(top)) if top > 0 else 0
    power = "10" + f"{exponent}".translate(SUPERSCRIPT)
    figure, axes = _framed(stages, axis, f"learning rate ({power})")
    x, y = thinned(steps.spent, steps.lr / 10.0**exponent, 600)
    axes.plot(x, y, color=ORANGE, linewidth=1.8, label="learning rate")
    axes.set_ylim(bottom=0.0)
    return _svg(figure, "lr-budget", "Learning rate against budget spent")


def throughput_figure(
    history: History, stages: tuple[StageRun, ...], uncompressed_per_s: float | None
) -> str:
    """Draw images per second against the budget, and the uncompressed rate if measured."""
    steps, axis = history.steps, clock(history, "budget")
    figure, axes = _framed(stages, axis, "images per second")
    median = trend(steps.spent, steps.images_per_s, _new_stage(history))
    axes.plot(*thinned(steps.spent, steps.images_per_s), color=TEAL, alpha=0.4, linewidth=0.8)
    axes.plot(*median, color=TEAL, linewidth=1.8, label="this run")
    if uncompressed_per_s is not None:
        axes.axhline(
            uncompressed_per_s, color=MUTED, linestyle="--", linewidth=1.3, label="uncompressed"
        )
    _zoom(axes, steps.images_per_s)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
    return _svg(figure, "throughput-budget", "Images per second against budget spent")


def _accuracy(history: History, who: str) -> float | None:
    figures = history.evaluation.get(who)
    return finite(figures.get("nn1")) if isinstance(figures, dict) else None


def _new_stage(history: History) -> npt.NDArray[np.bool_]:
    steps = history.steps
    changes = (np.diff(steps.p) != 0) | (np.diff(steps.drop) != 0)
    return np.concatenate([[True], changes])


def _zoom(axes: Axes, raw: npt.NDArray[np.float64]) -> None:
    """Cut off extreme outliers that would flatten the rest, and state the peak."""
    raw = raw[np.isfinite(raw)]
    if not len(raw):
        return
    low, high, peak = float(raw.min()), float(np.quantile(raw, 0.995)), float(raw.max())
    if high > low and peak > high + 2 * (high - low):
        margin = 0.1 * (high - low)
        axes.set_ylim(low - margin, high + margin)
        axes.text(
            0.99, 0.97, f"peak {quantity(peak)}, above the frame", transform=axes.transAxes,
            ha="right", va="top", fontsize=8.5, color=MUTED,
        )  # fmt: skip


def _framed(stages: tuple[StageRun, ...], axis: Clock, label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0.0, axis.end if axis.end > 0 else 1.0)
    axes.set_xlabel(axis.label, color=INK)
    axes.set_ylabel(label, color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    _bands(axes, stages, axis)
    return figure, axes


def _bands(axes: Axes, stages: tuple[StageRun, ...], axis: Clock) -> None:
    width = axis.end if axis.end > 0 else 1.0
    for number, (stage, tint) in enumerate(zip(stages, stage_tints(stages), strict=True), 1):
        start, stop = axis.bounds(stage)
        axes.axvspan(start, stop, color=tint, linewidth=0, zorder=0)
        share = (stop - start) / width
        if share >= 0.19:
            text = f"{compression(stage.p, stage.drop)}\nkeep {stage.keep:g}"
        elif share >= 0.04:
            text = f"{number}"
        else:
            continue
        axes.text(
            (start + stop) / 2,
            1.015,
            text,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=MUTED,
            linespacing=1.15,
        )


def _svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as one <svg> element with ids unique within the page."""
    axes = figure.axes[0]
    if axes.get_legend_handles_labels()[1]:
        figure.legend(
            loc="outside lower center", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK,
            handlelength=1.8, columnspacing=1.2,
        )  # fmt: skip
    buffer = io.StringIO()
    # Text stays text: smaller, selectable, and sharp at any size.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    label = escape(description, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()
