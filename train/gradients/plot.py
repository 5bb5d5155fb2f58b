"""Heat maps of an analysis: CA-MSE, squared bias and cost-adjusted variance over patch side and
drop.

One column for each stage of training, as a PNG and as a page that stands alone.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from accelssl.errors import UserError
from accelssl.files import refuse_existing
from accelssl.train.gradients.choose import chosen_cells
from accelssl.train.gradients.record import AnalysisRecord, CellRecord, StageRecord, read_record
from accelssl.train.report import page
from accelssl.train.report.figures import INK, MUTED

PANELS = {"CA-MSE": "ca_mse", "squared bias": "bias2", "cost-adjusted variance": "variance"}
_CELL_IN = 0.55
_DPI = 150
_MARK = "#c2570c"
_DECADES = 4


def plot(file: Path, out: Path | None = None, *, replaces: bool = False) -> list[Path]:
    """Write OUT.png and OUT.html and return their paths. OUT is the analysis's own name by default.

    Raise UserError for files that exist, unless `replaces`.
    """
    record = read_record(file)
    stem = (out or file).with_suffix("")
    png, html = stem.with_suffix(".png"), stem.with_suffix(".html")
    for path in (png, html):
        refuse_existing(path, replaces)
    figure = error_figure(record)
    try:
        figure.savefig(png, dpi=_DPI)
        html.write_text(_page(record, figure, file.name), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{stem}.png and .html cannot be written ({error.strerror}).",
            "Name files in a folder that is there and can be written with --out.",
        ) from error
    return [png, html]


def error_figure(record: AnalysisRecord) -> Figure:
    """Draw a row for each of PANELS. Values are divided by ||G||^2 if it is above 0 at every
    stage."""
    chosen = chosen_cells(record)
    sides = sorted({cell.cell.p for stage in record.stages for cell in stage.cells})
    drops = sorted({cell.cell.drop for stage in record.stages for cell in stage.cells})
    columns = len(record.stages)
    size = 1.2 + columns * (_CELL_IN * len(sides) + 0.25), 0.9 + 3 * (_CELL_IN * len(drops) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(PANELS), columns, squeeze=False)
    for row, (panel, name) in enumerate(PANELS.items()):
        values = [_values(record, stage, name, sides, drops) for stage in record.stages]
        norm = _norm(np.stack(values))
        for column, stage in enumerate(record.stages):
            axes = grid[row, column]
            _heat_map(axes, values[column], norm, sides, drops)
            _mark(axes, chosen[column], sides, drops)
            if row == 0:
                axes.set_title(f"{stage.share:.0%} of the budget", fontsize=9, color=INK)
            if column == 0:
                axes.set_ylabel(f"{panel}\ndrop", fontsize=9, color=INK)
            if row + 1 == len(PANELS):
                axes.set_xlabel("patch side (px)", fontsize=9, color=INK)
    return figure


def is_normalised(record: AnalysisRecord) -> bool:
    """Return true if ||G||^2 is above 0 at every stage."""
    cells = (cell for stage in record.stages for cell in stage.cells)
    return all(found is not None for cell in cells for found in cell.normalised.values())


def _values(
    record: AnalysisRecord,
    stage: StageRecord,
    name: str,
    sides: Sequence[int],
    drops: Sequence[float],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return one figure over drop and side; NaN where there is no such cell."""
    found = np.full((len(drops), len(sides)), np.nan)
    for cell in stage.cells:
        place = drops.index(cell.cell.drop), sides.index(cell.cell.p)
        found[place] = _value(cell, name, is_normalised(record))
    return found


def _value(cell: CellRecord, name: str, normalised: bool) -> float:
    interval = cell.normalised[name] if normalised else cell.raw[name]
    assert interval is not None  # is_normalised has checked
    return interval.value * (cell.cost_share if name == "variance" else 1.0)


def _norm(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Normalize:
    """Return a logarithmic colour scale. Very small values and values up to 0 get the palest
    colour."""
    positive = values[np.nan_to_num(values) > 0]
    if not len(positive):
        return Normalize(0.0, 1.0)
    top = float(positive.max())
    low = max(float(positive.min()), top / 10**_DECADES)
    return LogNorm(low if low < top else top / 10, top, clip=True)


def _heat_map(
    axes: Axes,
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    norm: Normalize,
    sides: Sequence[int],
    drops: Sequence[float],
) -> None:
    shown = np.where(values > 0, values, norm.vmin or 0.0)
    axes.imshow(np.where(np.isnan(values), np.nan, shown), cmap="Blues", norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = norm(max(value, norm.vmin or 0.0)) > 0.55
            axes.text(
                column, row, f"{value:.2g}", ha="center", va="center", fontsize=6.5,
                color="white" if dark else INK,
            )  # fmt: skip
    axes.set_xticks(range(len(sides)), [str(p) for p in sides])
    axes.set_yticks(range(len(drops)), [f"{drop:g}" for drop in drops])
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _mark(axes: Axes, chosen: CellRecord, sides: Sequence[int], drops: Sequence[float]) -> None:
    corner = sides.index(chosen.cell.p) - 0.5, drops.index(chosen.cell.drop) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=_MARK, linewidth=2))


def _page(record: AnalysisRecord, figure: Figure, name: str) -> str:
    facts = record.facts
    unit = "divided by ||G||\u00b2" if is_normalised(record) else "not divided by ||G||\u00b2"
    figures = f"Figures are {unit}. A frame marks the choice of accelssl schedule."
    body = [
        page.title(f"Gradient error: {facts.get('algo')}, {facts.get('model')}"),
        page.paragraph(figures),
        page.scroll(Markup(_svg(figure))),
    ]
    for stage, chosen in zip(record.stages, chosen_cells(record), strict=True):
        body += [page.heading(f"{stage.share:.0%} of the budget"), _table(stage, chosen)]
    body += [page.heading("How it was measured"), page.facts(facts)]
    return page.page(name, body)


def _table(stage: StageRecord, chosen: CellRecord) -> Markup:
    heads = ("cell", "units an image", "CA-MSE", "interval", "bias\u00b2", "interval", "variance")
    rows, tints = [], []
    for cell in sorted(stage.cells, key=lambda c: c.raw["ca_mse"].value):
        ca_mse, bias2, variance = (cell.raw[n] for n in ("ca_mse", "bias2", "variance"))
        rows.append(
            (
                str(cell.cell),
                f"{cell.cost:.3g}",
                f"{ca_mse.value:.3g}",
                f"{ca_mse.low:.3g} to {ca_mse.high:.3g}",
                f"{bias2.value:.3g}",
                f"{bias2.low:.3g} to {bias2.high:.3g}",
                f"{variance.value:.3g}",
            )
        )
        tints.append(_MARK if cell is chosen else "transparent")
    return page.table(heads, rows, tints)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "camse"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
