"""The report of a run: one HTML file, made from the run's folder alone, that stands alone.

A report can be written after a run, during it or after a crash. It names everything that the folder
does not have yet.
"""

import os
from pathlib import Path
from typing import Any

from markupsafe import Markup

from accelssl.errors import UserError
from accelssl.formats import compression, duration, quantity, times
from accelssl.train.gradients.choose import best_of, ties_of
from accelssl.train.gradients.decision import Decision
from accelssl.train.gradients.record import CellRecord
from accelssl.train.methods import METHODS
from accelssl.train.report import cost_accounting, page
from accelssl.train.report.cost_accounting import beside
from accelssl.train.report.figures import (
    accuracy_figure,
    loss_figure,
    rate_figure,
    stage_tints,
    throughput_figure,
)
from accelssl.train.report.history import History, read_history
from accelssl.train.report.pictures import picture_blocks
from accelssl.train.report.stage_costs import (
    StageRun,
    Uncompressed,
    counted_speed_up,
    realised_speed_up,
    stage_runs,
    uncompressed,
    whole_run,
)
from accelssl.train.report.summary import (
    evaluation_note,
    key_figures,
    opening,
    run_name,
    share_of_budget,
)

HOW_TO_MEASURE = (
    "Realised speed-up: not measured. accelssl train times uncompressed steps at the end, except "
    "with --no-baseline, after an interruption, or if the steps do not fit the device's memory. "
    "To compare, train the same model and batch with --patch 16 --drop 0 for a few minutes on the "
    "same machine."
)
NO_EVALUATION = (
    "No evaluation was logged during training. Train with --eval-every 0.1 to evaluate at every "
    "tenth of the budget."
)
COST_HEADS = (
    "stage", "p", "drop", "keep", "units per image", "share of budget", "images",
    "training time", "images/s", "units/s", "counted speed-up", "realised speed-up",
)  # fmt: skip
DECISION_HEADS = (
    "at", "chosen", "units an image", "CA-MSE", "interval", "best", "CA-MSE", "interval",
    "equal to the best", "images", "units", "time", "why",
)  # fmt: skip


def write_report(run: Path) -> Path:
    """Write RUN/report.html and return its path.

    An older report is replaced atomically. Raise UserError when `run` is not a run, one of its JSON
    files is damaged, or the folder cannot be written.
    """
    history = read_history(run)
    text = render(history)
    path = run / "report.html"
    draft = run / f".report.html.{os.getpid()}"
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UserError(
            f"{path} cannot be written: {error.strerror}.",
            "Free space on the disk, or make the folder writable.",
        ) from error
    return path


def render(history: History) -> str:
    """Return the whole page as text."""
    stages = stage_runs(history)
    plain = uncompressed(history, stages)
    parts = [
        *opening(history),
        *key_figures(history, stages, plain),
        evaluation_note(history),
        *_curves(history, stages, plain),
        *_pictures(history),
        *decisions_section(history),
        *_costs(history, stages, plain),
        *_ledgers(history, stages, plain),
        *_settings(history),
    ]
    return page.page(f"{run_name(history)} - accelssl", parts)


def _curves(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> list[Markup]:
    if not stages:
        return []
    parts = [
        page.heading("Loss"),
        page.plots(
            [
                ("Loss against budget", loss_figure(history, stages, "budget")),
                ("Loss against time", loss_figure(history, stages, "time")),
            ]
        ),
        page.paragraph(_band_note(history, stages)),
        page.heading("Accuracy"),
    ]
    if history.accuracies:
        budget, time = (accuracy_figure(history, stages, by) for by in ("budget", "time"))
        parts.append(
            page.plots([("Accuracy against budget", budget), ("Accuracy against time", time)])
        )
    else:
        parts.append(page.paragraph(NO_EVALUATION))
    parts += [
        page.heading("Learning rate and throughput"),
        page.plots(
            [
                ("Learning rate against budget", rate_figure(history, stages)),
                (
                    "Images per second against budget",
                    throughput_figure(history, stages, plain.images_per_s),
                ),
            ]
        ),
    ]
    return parts


def _band_note(history: History, stages: tuple[StageRun, ...]) -> str:
    names = "; ".join(
        f"{number}: {compression(stage.p, stage.drop)}, keep {stage.keep:g}"
        for number, stage in enumerate(stages, 1)
    )
    method = METHODS.get(str(history.config.get("algo")))
    note = f" {method.of(history.config).loss_note}".rstrip() if method else ""
    return (
        "Bands show the schedule: p is the patch side in pixels, d the share of dropped patches, "
        "keep the number of patch tokens left in a view (MoCo: in a query). Darker bands have a "
        f"higher cost per image. Stages: {names}. Losses of different compressions cannot be "
        f"compared directly.{note}"
    )


def _pictures(history: History) -> list[Markup]:
    path = history.run / "pictures.npz"
    if not path.is_file():
        return []
    heading = page.heading("What the network saw")
    try:
        blocks = picture_blocks(path)
    except ValueError as error:
        text = f"pictures.npz cannot be shown: {error}."
        return [heading, page.paragraph(text, "warning")]
    note = (
        "Each column is one picture, the first view above the second. Blank patches were dropped: "
        "they never reached the network."
    )
    return [heading, page.paragraph(note), page.pictures(blocks)]


def _costs(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> list[Markup]:
    if not stages:
        return []
    rows = [_cost_row(f"{n}", stage, history, plain) for n, stage in enumerate(stages, 1)]
    tints: list[str | None] = [*stage_tints(stages)]
    if len(stages) > 1:
        whole = _cost_row("whole run", whole_run(stages), history, plain)
        rows.append([whole[0], "", "", "", *whole[4:]])
        tints.append(None)
    notes = [
        "Counted speed-up: units of an uncompressed image over units of an image of the stage. "
        "Realised speed-up: images per second of the stage over those of uncompressed training. "
        "Training time includes start-up and excludes evaluation."
    ]
    if plain.images_per_s is None:
        notes.append(HOW_TO_MEASURE)
    table = page.table(COST_HEADS, rows, tints)
    return [page.heading("Cost per stage"), table, *map(page.paragraph, notes)]


def _cost_row(name: str, stage: StageRun, history: History, plain: Uncompressed) -> list[str]:
    realised = realised_speed_up(stage, plain)
    return [
        name,
        f"{stage.p:g}",
        f"{stage.drop:g}",
        f"{stage.keep:g}",
        f"{stage.sample_cost:.3f}",
        share_of_budget(stage, history),
        quantity(stage.images),
        duration(stage.training_s),
        quantity(stage.images_per_s),
        quantity(stage.units_per_s),
        times(counted_speed_up(stage, plain)),
        "not measured" if realised is None else times(realised),
    ]


def _ledgers(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> list[Markup]:
    if not stages:
        return []
    against, _ = cost_accounting.reference(stages, plain)
    rows = cost_accounting.rows(stages, plain)
    tints = [*stage_tints(stages), None][: len(rows)]
    if history.decisions:
        rows, tints = [*rows, cost_accounting.estimates_row(history)], [*tints, None]
    notes = [
        "Units are the paper's: linear in tokens, without heads; a backward pass costs two forward "
        "passes. PFLOP are 10^15 operations of all matrix products, forward and backward, without "
        "decoding and augmentation. Brackets give the share of the run."
    ]
    if against:
        notes[0] += (
            f" The last two columns compare the cost of a unit with {against}, without start-up."
        )
    heading, table = (
        page.heading("Units, operations and seconds"),
        page.table(cost_accounting.HEADS, rows, tints),
    )
    notes += cost_accounting.drift_notes(stages, plain)
    return [heading, table, *map(page.paragraph, notes)]


def _settings(history: History) -> list[Markup]:
    environment: dict[str, Any] = dict(history.environment)
    command = environment.pop("command", None)
    recorded = page.facts(environment) if environment else page.paragraph("Not recorded.")
    sections = [
        ("Configuration", page.facts(history.config)),
        ("Versions and hardware", recorded),
    ]
    parts = [page.columns(sections)]
    if command:
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        parts += [page.heading("Command"), page.code(text)]
    return parts


def decisions_section(history: History) -> list[Markup]:
    """Return the section on the choices of --schedule auto; empty for other runs."""
    if not history.decisions:
        return []
    note = (
        "CA-MSE is the squared bias of a compression's gradient plus its variance, adjusted to the "
        "cost of an uncompressed step of the run. Smaller is better. A compression is "
        "statistically equal to the best if the 95% interval of their difference, on the same "
        "images, contains 0. The run keeps its current compression if it is equal to the best. "
        "Otherwise it takes the cheapest that is. The estimates took "
        f"{beside(history)} in addition to budget and training time."
    )
    rows = [_decision_row(decision) for decision in history.decisions]
    table = page.table(DECISION_HEADS, rows, ["transparent"] * len(rows))
    return [page.heading("How compressions were chosen"), table, page.paragraph(note)]


def _decision_row(decision: Decision) -> list[str]:
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
