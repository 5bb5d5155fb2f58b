"""The output of `accelssl plan`: a table of stages, the assumptions, and the command to train."""

import json
from dataclasses import asdict
from typing import Any

from accelssl.formats import ABSENT, aligned, duration, quantity
from accelssl.train.config.budget import fewer_epochs, format_units
from accelssl.train.config.compression_options import another_method
from accelssl.train.config.config import TrainConfig
from accelssl.train.plan.plan import RunPlan, StagePlan

HEADS = (
    "stage", "until", "steps", "images", "epochs", "units", "PFLOP", "s/step", "time",
    "images/s needed", "loader gives",
)  # fmt: skip


def plan_json(plan: RunPlan, config: TrainConfig, command: str) -> str:
    """Return the plan as JSON; times in seconds, `flops` in operations."""
    stages = [asdict(s) | {"waits_for_data": s.waits_for_data} for s in plan.stages]
    totals: dict[str, Any] = {
        name: getattr(plan, name)
        for name in ("steps", "images", "epochs", "units", "flops", "seconds_s")
    }
    content = asdict(plan) | totals | {"stages": stages, "command": command}
    return json.dumps(content | {"config": config.to_json()}, indent=1)


def plan_text(plan: RunPlan, config: TrainConfig, command: str) -> str:
    """Return the plan as text."""
    rows = [list(HEADS), *(_row(stage) for stage in plan.stages)]
    if len(plan.stages) > 1:
        rows.append(_total(plan))
    devices = f" on {plan.gpus} GPUs" if plan.gpus > 1 else ""
    return "\n".join(
        [
            f"{config.algo} {config.model}, {plan.set_images:,} images, "
            f"batch {plan.batch}{devices}; {format_units(plan.budget)} units take "
            f"{duration(plan.seconds_s)}: {plan.steps:,} steps, {plan.images:,} images, "
            f"{plan.epochs:,.1f} epochs",
            "",
            *aligned(rows),
            "",
            *_notes(plan),
            *([note] if (note := another_method(config)) else []),
            "Train it with:",
            f"  {command}",
        ]
    )


def _notes(plan: RunPlan) -> list[str]:
    notes = []
    if len(plan.stages) > 1:
        notes.append(
            "Stages end at shares of the budget. If they ended at shares of the steps, there would "
            f"be {plan.steps_by_iterations:,} steps."
        )
    slow = [stage for stage in plan.stages if stage.waits_for_data]
    notes += [
        f"Steps of {_name(stage)} will wait for data: the loader delivers "
        f"{quantity(stage.loader_images_per_s)} of {quantity(stage.needed_images_per_s)} images/s."
        for stage in slow
    ]
    if slow:
        notes.append(
            "Run accelssl bench-throughput --shards SHARDS to see the bottleneck of the loader."
        )
    if advice := fewer_epochs(plan.budget, plan.epochs):
        notes.append(f"Every image is shown {plan.epochs:,.0f} times. {advice}")
    notes += [f"Assumed: {assumption}." for assumption in plan.assumptions]
    notes.append("Times exclude start-up, compilation and evaluation.")
    return notes


def _row(stage: StagePlan) -> list[str]:
    return [
        _name(stage),
        f"{stage.until:.0%}",
        f"{stage.steps:,}",
        quantity(stage.images),
        f"{stage.epochs:,.1f}",
        quantity(stage.units),
        quantity(stage.flops / 1e15),
        f"{stage.step_s:.3g}",
        duration(stage.seconds_s),
        quantity(stage.needed_images_per_s),
        quantity(stage.loader_images_per_s),
    ]


def _total(plan: RunPlan) -> list[str]:
    return [
        "all",
        "",
        f"{plan.steps:,}",
        quantity(plan.images),
        f"{plan.epochs:,.1f}",
        quantity(plan.units),
        quantity(plan.flops / 1e15),
        f"{plan.seconds_s / plan.steps:.3g}" if plan.steps else ABSENT,
        duration(plan.seconds_s),
        "",
        "",
    ]


def _name(stage: StagePlan) -> str:
    return f"p{stage.p} d{stage.drop:g}"
