"""Speed of this machine: a few steps of each stage, and the loader alone.

Shapes: N images on this rank, L kept patches.
"""

import gc
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import TOKEN_VALUES
from accelssl.pipeline.draws.drops import kept_patches
from accelssl.pipeline.loader import Batch, Loader, Tokens
from accelssl.shards.shard_set import ShardSet
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Stage
from accelssl.train.objective import build
from accelssl.train.optim.adamw import adamw
from accelssl.train.out_of_memory import is_out_of_memory
from accelssl.train.plan.plan import Speed, StageSpeed
from accelssl.train.ranks.distributed import Ranks
from accelssl.train.session import loader_options, run_views
from accelssl.train.step import Step

# On a GPU the first step compiles, the second captures; see baseline.py.
GPU_WARM_UP, CPU_WARM_UP = 3, 1
MIN_CALLS, MAX_CALLS, ENOUGH_S = 2, 50, 3.0
SCALING = 0.945
"""Rate of each of several GPUs, relative to one alone: two gave 1.89 times the rate of one
(benchmarks/results/live_pipeline_log_202611.md)."""


def probe_speed(
    config: TrainConfig,
    shards: ShardSet,
    device: torch.device,
    gpus: int,
    progress: Callable[[str], None] = lambda doing: None,
) -> Speed:
    """Measure one rank of `gpus` on `device` and scale. `progress` is called with the next
    measurement.

    Weights and shards stay unchanged. Raise UserError when a step does not fit the device's memory.
    """
    ranks = Ranks(world=gpus)
    progress("the loader")
    loader_s = _loader_seconds(config, shards, device, ranks)
    try:
        step_s = _step_seconds(config, device, ranks.share(config.batch), progress)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"A step of {ranks.share(config.batch)} images does not fit the memory of {device}.",
            "Use a smaller --batch, more --gpus, or stages with fewer tokens.",
        ) from None
    assumptions = [f"probed on {_name(device)}, {config.precision}: steps and loader by themselves"]
    if gpus > 1:
        step_s = [seconds_s / SCALING for seconds_s in step_s]
        assumptions.append(scaling_assumption(gpus))
        assumptions.append(
            f"{gpus} loaders, each with its share of this machine's cores, are all as fast as one"
        )
    speeds = (
        StageSpeed(seconds_s, config.batch / loading_s)
        for seconds_s, loading_s in zip(step_s, loader_s, strict=True)
    )
    return Speed(tuple(speeds), device.type == "cuda", tuple(assumptions))


def scaling_assumption(gpus: int) -> str:
    """Return the assumption about several GPUs in words."""
    return (
        f"{gpus} GPUs, each with its share of the batch, give {gpus * SCALING:.2f} times one's rate"
    )


def new_step(config: TrainConfig, device: torch.device) -> Step:
    """Return a step of the run's method with initial weights and optimiser."""
    objective = build(config).to(device)
    optimizer = adamw(
        objective,
        config.weight_decay,
        decays_vectors=config.decays_vectors,
        final_weight_decay=config.final_weight_decay,
        clip=config.clip,
    )
    return Step(objective, optimizer, config.precision)


def synthetic_batch(config: TrainConfig, stage: Stage, images: int, device: torch.device) -> Batch:
    """Return a batch like the loader's for `stage`, with normally distributed tokens."""
    views, samples_N = run_views(config), np.arange(images)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    tokens = []
    for place, compression in enumerate(config.compressions(stage)):
        index = place % len(views)
        size = views[index].size
        grid, keep = compression.grid(size), compression.keep(size)
        keep_idx_NL = kept_patches(config.seed, 0, samples_N, index, grid**2, keep)
        values = torch.randn(images, keep, TOKEN_VALUES, device=device).to(dtype)
        tokens.append(Tokens(values, torch.from_numpy(keep_idx_NL).to(device), compression.p, grid))
    return Batch(tuple(tokens), samples_N, 0)


def _step_seconds(
    config: TrainConfig, device: torch.device, images: int, progress: Callable[[str], None]
) -> list[float]:
    """Return the seconds of a step on one rank, by stage, at learning rate 0."""
    step = new_step(config, device)
    seconds = []
    for stage in config.schedule.stages:
        progress(f"steps of {stage.compression}")
        batch = synthetic_batch(config, stage, images, device)
        warm_up = GPU_WARM_UP if device.type == "cuda" else CPU_WARM_UP
        seconds.append(seconds_a_call(partial(step, batch, 0.0), warm_up, device))
    del step, batch
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return seconds


def _loader_seconds(
    config: TrainConfig, shards: ShardSet, device: torch.device, ranks: Ranks
) -> list[float]:
    """Return the seconds of a batch on one rank, by stage, after the batches decoded ahead."""
    options = loader_options(config, device, ranks)
    loader = Loader(shards.split("train"), run_views(config), options)
    try:
        seconds = []
        for stage in config.schedule.stages:
            asked = config.compressions(stage)
            ahead = options.decoding.batches_ahead + 2
            seconds.append(seconds_a_call(partial(loader.next, asked, asked), ahead, device))
        return seconds
    finally:
        loader.close()


def seconds_a_call(call: Callable[[], object], warm_up: int, device: torch.device) -> float:
    """Return the mean time of calls during about ENOUGH_S seconds, after `warm_up` calls."""
    for _ in range(warm_up):
        call()
    wait_for(device)
    calls, began_s = 0, time.perf_counter()
    while calls < MIN_CALLS or (calls < MAX_CALLS and time.perf_counter() - began_s < ENOUGH_S):
        call()
        calls += 1
    wait_for(device)
    return (time.perf_counter() - began_s) / calls


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
