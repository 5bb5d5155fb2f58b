"""Speed of a run on another machine, from its saved bench-throughput."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.json_text import parsed
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.train.config import recipes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.flops import ModelShape
from accelssl.train.config.schedule import Stage, constant
from accelssl.train.methods.simclr import SimCLRMethod, simclr_flops
from accelssl.train.objective import build
from accelssl.train.plan.plan import Speed, StageSpeed
from accelssl.train.plan.probe_speed import SCALING, scaling_assumption
from accelssl.train.report.history import finite

REMEDY = "Name the .json that accelssl bench-throughput --out writes."


def bench_speed(path: Path, config: TrainConfig, step_flops: Sequence[float], gpus: int) -> Speed:
    """Estimate the seconds of each stage's steps from those of SimCLR in a bench-throughput file.

    step_flops: of a batch, by stage. A stage runs at the measured rate of operations of the same
    model, at the same compression or the nearest in tokens; with the loader if measured, else
    alone. Operations are counted again, because the file may be older than the formula. Raise
    UserError for another file, or one without steps of the model.
    """
    bench = _read(path)
    rows = [row for row in bench["rows"] if row["model"] == config.model]
    if not rows:
        measured = ", ".join(sorted({row["model"] for row in bench["rows"]})) or "no steps at all"
        raise UserError(
            f"{path} has no steps of {config.model}: it has {measured}.",
            f"Measure it: accelssl bench-throughput --models {config.model} --out FOLDER.",
        )
    loader_images_per_s = _loader_rate(bench["sources"], gpus)
    speeds, assumptions = [], [f"measured on {bench['environment'].get('device')}, in {path}"]
    if config.algo != SimCLRMethod.name:
        assumptions.append(f"{config.algo} has the rate of operations that simclr had there")
    shape = _simclr_shape(config.model)
    scale = 1 if gpus == 1 else gpus * SCALING
    for stage, flops in zip(config.schedule.stages, step_flops, strict=True):
        row = _nearest(rows, config, stage)
        measured_s = (row["live"] or row["synthetic"])["median_s"]
        flops_per_s = simclr_flops(shape, row["pairs"], row["keep"]) / measured_s
        speeds.append(StageSpeed(flops / flops_per_s / scale, loader_images_per_s))
        if (row["p"], row["drop"]) != (stage.compression.p, stage.compression.drop):
            assumptions.append(
                f"{stage.compression} has the rate of operations of p{row['p']} d{row['drop']:g}"
            )
    if gpus > 1:
        assumptions.append(scaling_assumption(gpus))
        assumptions.append("each of them has a loader as fast as the one measured")
    if (images := config.batch // gpus) != rows[0]["pairs"]:
        assumptions.append(
            f"batches of {images} are as fast an image as those of {rows[0]['pairs']}"
        )
    return Speed(tuple(speeds), bench["environment"].get("device") != "cpu", tuple(assumptions))


def _read(path: Path) -> dict[str, Any]:
    try:
        bench = parsed(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read ({reason}).", REMEDY) from None
    parts = {"rows": list, "sources": list, "environment": dict}
    if not isinstance(bench, dict) or not all(
        isinstance(bench.get(name), kind) for name, kind in parts.items()
    ):
        raise UserError(f"{path} is not what bench-throughput found.", REMEDY)
    try:
        for row in bench["rows"]:
            _ = row["model"], row["p"], row["drop"], row["keep"], row["pairs"]
            _ = (row["live"] or row["synthetic"])["median_s"]
        _loader_rate(bench["sources"], 1)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is not what bench-throughput found ({error}).", REMEDY) from None
    return bench


def _simclr_shape(model: str) -> ModelShape:
    """Return the shape of the network that bench-throughput trains: the recipe with its head."""
    config = recipes.simclr(model, "", math.inf, constant(UNCOMPRESSED))
    with torch.device("meta"):
        return ModelShape.of(build(config))


def _nearest(rows: Sequence[dict[str, Any]], config: TrainConfig, stage: Stage) -> dict[str, Any]:
    wanted, keep = stage.compression, stage.compression.keep(config.size)

    def distance(row: dict[str, Any]) -> tuple[bool, float]:
        is_other = (row["p"], row["drop"]) != (wanted.p, wanted.drop)
        return is_other, abs(math.log(row["keep"] / keep))

    return min(rows, key=distance)


def _loader_rate(sources: Sequence[dict[str, Any]], gpus: int) -> float | None:
    """Return the rate of the loaders alone with cached files, one for each GPU, at the slowest
    compression."""
    rates = [
        gpus * source["images"] / source["time"]["median_s"]
        for source in sources
        if source.get("source") == "loader" and finite(source.get("images"))
    ]
    return min(rates, default=None)
