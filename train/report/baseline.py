"""Speed of uncompressed training on this machine, the reference of the realised speed-up."""

import json
import time
from pathlib import Path

from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.pipeline.loader import Loader
from accelssl.train.config.flops import ModelShape, image_flops
from accelssl.train.config.schedule import Stage
from accelssl.train.log.log import NAME as LOG
from accelssl.train.loop import step_of
from accelssl.train.out_of_memory import is_out_of_memory
from accelssl.train.session import Session, loader_options, run_views

# Three warm-up steps on a GPU: one compiles, one captures, one refills the loader's queue.
GPU_WARM_UP, CPU_WARM_UP = 3, 1
MIN_STEPS, MAX_STEPS, ENOUGH_S = 2, 50, 10.0


def wants_baseline(session: Session) -> bool:
    """Return true if the run had no uncompressed stage and its crops have a 16 px grid."""
    known = any(stage.compression == UNCOMPRESSED for stage in session.schedule.stages)
    return not known and session.config.size % UNCOMPRESSED.p == 0


def measure_baseline(session: Session, run: Path) -> None:
    """Time uncompressed steps of the live pipeline and append their rate to the log.

    Call after the run is saved: the steps change the weights in memory. Nothing is measured if no
    baseline is wanted or the uncompressed batch does not fit into memory.
    """
    if not wants_baseline(session):
        return
    config, device, plain = session.config, session.device, Stage(1.0, UNCOMPRESSED)
    loader = Loader(
        session.shards.split("train"), run_views(config), loader_options(config, device)
    )
    try:
        images_per_s = _rate(session, loader)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return
    finally:
        loader.close()
    line = {
        "kind": "baseline",
        "images_per_s": images_per_s,
        "sample_cost": config.sample_cost(plain),
        "image_flops": image_flops(ModelShape.of(session.objective), config, plain),
    }
    with (run / LOG).open("a") as log:
        log.write(json.dumps(line) + "\n")


def _rate(session: Session, loader: Loader) -> float:
    step, views = step_of(session), session.config.compressions(Stage(1.0, UNCOMPRESSED))
    on_gpu = session.device.type == "cuda"
    for _ in range(GPU_WARM_UP if on_gpu else CPU_WARM_UP):
        step(loader.next(views, views), 0.0).item()
    steps, started = 0, time.perf_counter()
    while steps < MIN_STEPS or (steps < MAX_STEPS and time.perf_counter() - started < ENOUGH_S):
        loss = step(loader.next(views, views), 0.0)
        steps += 1
    loss.item()
    return steps * session.config.batch / (time.perf_counter() - started)
