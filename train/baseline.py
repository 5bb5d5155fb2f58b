"""How fast the uncompressed run would be on this machine: what a realised speed-up is against."""

import json
import time
from pathlib import Path

import torch

from accelssl.pipeline.compress.compression import UNCOMPRESSED
from accelssl.pipeline.loader import Loader
from accelssl.train.log import NAME as LOG
from accelssl.train.loop import step
from accelssl.train.schedule import Stage
from accelssl.train.session import Session, loader_options, run_views

MIN_STEPS, MAX_STEPS, ENOUGH_S = 2, 50, 10.0


def measure_baseline(session: Session, run: Path) -> None:
    """Time uncompressed steps of the live pipeline and append their rate to the log.

    Call it when the run is over and saved: the steps change the weights in memory. Where the
    crop has no 16-pixel grid or the
    uncompressed batch does not fit the device's memory, nothing is measured or written.
    """
    config = session.config
    known = any(stage.compression == UNCOMPRESSED for stage in config.schedule.stages)
    if known or config.size % UNCOMPRESSED.p:
        return
    device = session.device
    loader = Loader(
        session.shards.split("train"), run_views(config), loader_options(config, device)
    )
    try:
        images_per_s = _rate(session, loader)
    except torch.OutOfMemoryError:
        return
    line = {
        "kind": "baseline",
        "images_per_s": images_per_s,
        "sample_cost": config.sample_cost(Stage(1.0, UNCOMPRESSED)),
    }
    with (run / LOG).open("a") as log:
        log.write(json.dumps(line) + "\n")


def _rate(session: Session, loader: Loader) -> float:
    steps, started = -1, 0.0
    while True:
        batch = loader.next((UNCOMPRESSED, UNCOMPRESSED))
        step(session, batch, 0.0).item()
        steps += 1
        if steps == 0:  # the first step warms up
            started = time.perf_counter()
        elapsed_s = time.perf_counter() - started
        if steps >= MAX_STEPS or (steps >= MIN_STEPS and elapsed_s >= ENOUGH_S):
            return steps * session.config.batch / elapsed_s
