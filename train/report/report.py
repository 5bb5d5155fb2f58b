"""The report of a run: one HTML file, made from the run's folder alone, that stands alone.

It is written after a run, during one or after a crash: whatever the folder does not hold yet, the
report says so in place of a figure.
"""

import os
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.formats import compression, duration, quantity, times
from accelssl.train.methods import METHODS
from accelssl.train.report import cost_accounting, page
from accelssl.train.report.decision_pages import decisions_section
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
    "Realised speed-up: not measured. accelssl train times uncompressed steps once the budget is "
    "spent, unless it is given --no-baseline, is interrupted, or they do not fit the device's "
    "memory. Otherwise train the same model and batch with --patch 16 --drop 0 for a few minutes "
    "on the same machine and compare the images per second."
)
NO_EVALUATION = (
    "No evaluation was logged during training; train with --eval-every 0.1 to have one every tenth "
    "of the budget."
)
COST_HEADS = (
    "stage", "p", "drop", "keep", "units per image", "share of budget", "images",
    "training time", "images/s", "units/s", "counted speed-up", "realised speed-up",
)  # fmt: skip


def write_report(run: Path) -> Path:
    """Write RUN/report.html from what the run left in its folder; returns its path.

    Replaces an older report in one move. Raises UserError when `run` holds no run, when one of
    its JSON files is damaged, or when the folder cannot be written.
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
    """The whole page as text."""
    stages = stage_runs(history)
    plain = uncompressed(history, stages)
    parts = [
        opening(history),
        key_figures(history, stages, plain),
        evaluation_note(history),
        _curves(history, stages, plain),
        _pictures(history),
        decisions_section(history),
        _costs(history, stages, plain),
        _ledgers(history, stages, plain),
        _settings(history),
    ]
    return page.page(f"{run_name(history)} - accelssl", "\n".join(part for part in parts if part))


def _curves(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> str:
    if not stages:
        return ""
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
    return "\n".join(parts)


def _band_note(history: History, stages: tuple[StageRun, ...]) -> str:
    names = "; ".join(
        f"{number}: {compression(stage.p, stage.drop)}, keep {stage.keep:g}"
        for number, stage in enumerate(stages, 1)
    )
    method = METHODS.get(str(history.config.get("algo")))
    note = f" {method.of(history.config).loss_note}".rstrip() if method else ""
    return (
        "Bands show the schedule: p is the side of a patch in pixels, d the fraction of patches "
        "dropped, keep the patch tokens left of a view (MoCo: of a query); the darker a band, the "
        f"more an image costs. Stages: {names}. The loss of different compressions cannot be "
        f"compared directly.{note}"
    )


def _pictures(history: History) -> str:
    path = history.run / "pictures.npz"
    if not path.is_file():
        return ""
    heading = page.heading("What the network saw")
    try:
        blocks = picture_blocks(path)
    except ValueError as error:
        text = f"pictures.npz cannot be shown: {error}."
        return f"{heading}\n{page.paragraph(text, 'warning')}"
    note = (
        "Each column is one picture: its first view above, its second view below. Blank patches "
        "were dropped: they never reached the network."
    )
    return "\n".join([heading, page.paragraph(note), page.pictures(blocks)])


def _costs(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> str:
    if not stages:
        return ""
    rows = [_cost_row(f"{n}", stage, history, plain) for n, stage in enumerate(stages, 1)]
    tints: list[str | None] = [*stage_tints(stages)]
    if len(stages) > 1:
        whole = _cost_row("whole run", whole_run(stages), history, plain)
        rows.append([whole[0], "", "", "", *whole[4:]])
        tints.append(None)
    notes = [
        "Counted speed-up: units an uncompressed image costs over the units an image of the stage "
        "costs. Realised speed-up: images per second of the stage over those of uncompressed "
        "training. Seconds are training only, start-up included, evaluation not."
    ]
    if plain.images_per_s is None:
        notes.append(HOW_TO_MEASURE)
    table = page.table(COST_HEADS, rows, tints)
    return "\n".join([page.heading("Cost per stage"), table, *map(page.paragraph, notes)])


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


def _ledgers(history: History, stages: tuple[StageRun, ...], plain: Uncompressed) -> str:
    if not stages:
        return ""
    against, _ = cost_accounting.reference(stages, plain)
    rows = cost_accounting.rows(stages, plain)
    tints = [*stage_tints(stages), None][: len(rows)]
    if history.decisions:
        rows, tints = [*rows, cost_accounting.estimates_row(history)], [*tints, None]
    notes = [
        "Units are the paper's: linear in tokens, heads left out, a backward pass twice a forward "
        "one. PFLOP are 10^15 operations of all matrix products, forward and backward, decoding "
        "and augmentation left out. In brackets the share of the run."
    ]
    if against:
        notes[0] += (
            f" The last two columns: what a unit costs against one of {against}, start-up left out."
        )
    heading, table = page.heading("Three ledgers"), page.table(cost_accounting.HEADS, rows, tints)
    notes += cost_accounting.drift_notes(stages, plain)
    return "\n".join([heading, table, *map(page.paragraph, notes)])


def _settings(history: History) -> str:
    environment: dict[str, Any] = dict(history.environment)
    command = environment.pop("command", None)
    recorded = page.facts(environment) if environment else page.paragraph("Not recorded.")
    parts = [
        '<div class="columns">',
        f"<div>{page.heading('Configuration')}{page.facts(history.config)}</div>",
        f"<div>{page.heading('Versions and hardware')}{recorded}</div></div>",
    ]
    if command:
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        parts += [page.heading("Command"), page.code(text)]
    return "\n".join(parts)
