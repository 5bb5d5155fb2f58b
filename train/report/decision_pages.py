"""The report's section on how a run with --schedule auto chose its compressions."""

from markupsafe import Markup

from accelssl.formats import duration, quantity
from accelssl.train.gradients.choose import best_of, ties_of
from accelssl.train.gradients.decision import Decision
from accelssl.train.gradients.record import CellRecord
from accelssl.train.report import page
from accelssl.train.report.cost_accounting import beside
from accelssl.train.report.history import History

HEADS = (
    "at", "chosen", "units an image", "CA-MSE", "interval", "best", "CA-MSE", "interval",
    "as good as the best", "images", "units", "time", "why",
)  # fmt: skip


def decisions_section(history: History) -> list[Markup]:
    """Nothing for a run that was given its schedule."""
    if not history.decisions:
        return []
    note = (
        "CA-MSE is the squared bias of a compression's gradient plus its variance, adjusted to "
        "what an uncompressed step of the run costs; small is good. One cannot be told from the "
        "best if the 95% interval of what they differ by, on the same images, has 0 in it: a run "
        "keeps the one it has while that is so, else it takes the cheapest such. Beside budget and "
        f"training time the estimates took {beside(history)}."
    )
    rows = [_row(decision) for decision in history.decisions]
    table = page.table(HEADS, rows, ["transparent"] * len(rows))
    return [page.heading("How compressions were chosen"), table, page.paragraph(note)]


def _row(decision: Decision) -> list[str]:
    chosen, best = decision.chosen, best_of(decision.stage)
    return [
        f"{100 * decision.share:g}%",
        str(decision.cell),
        f"{chosen.cost:.3g}",
        *_error(chosen),
        str(best.cell),
        *_error(best),
        f"{len(ties_of(decision.stage))} of {len(decision.stage.cells)}",
        f"{decision.samples:,}",
        quantity(decision.units),
        duration(decision.seconds),
        decision.why,
    ]


def _error(cell: CellRecord) -> tuple[str, str]:
    error = cell.raw["ca_mse"]
    return f"{error.value:.3g}", f"{error.low:.3g} to {error.high:.3g}"
