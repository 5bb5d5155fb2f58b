"""The measuring of training steps: on fixed batches, and live from a loader."""

import gc
import time
from collections.abc import Callable
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from accelssl.benchmarks.kernel.inputs import InputPool
from accelssl.benchmarks.throughput.plan import SIZE
from accelssl.benchmarks.throughput.row import Row
from accelssl.benchmarks.throughput.sources import next_batch
from accelssl.benchmarks.throughput.step_windows import (
    Loop,
    Windows,
    launch_seconds,
    measure,
    wait_for,
)
from accelssl.benchmarks.timing import Timing, time_captured
from accelssl.pipeline.compress.op import augment_patchify
from accelssl.pipeline.compression import TOKEN_VALUES, Compression
from accelssl.pipeline.draws.drops import kept_patches
from accelssl.pipeline.loader import Batch, Loader, LoaderOptions, Tokens
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.flops import ModelShape
from accelssl.train.config.schedule import Stage
from accelssl.train.methods.simclr import simclr_flops
from accelssl.train.objective import build
from accelssl.train.optim.adamw import adamw
from accelssl.train.session import loader_options
from accelssl.train.step import Step

BATCHES, OP_SETS, OP_RUNS = 3, 4, 5
RATE = 0.0
"""Learning rate: the weights stay, the work is the same."""


class ModelSteps:
    """A model with its optimiser and its one Step, which serves all compressions."""

    def __init__(self, config: TrainConfig, device: torch.device, windows: Windows) -> None:
        self._config, self._device, self._windows = config, device, windows
        self.options = loader_options(config, device)
        objective = build(config).to(device)
        self._shape = ModelShape.of(objective)
        optimizer = adamw(objective, config.weight_decay)
        self._step = Step(objective, optimizer, config.precision)

    def row(
        self,
        compression: Compression,
        op: Timing | None,
        new_loader: Callable[[], Loader] | None,
        progress: Callable[[str], None],
    ) -> Row:
        """Measure the step alone, and live if there is a way to a loader."""
        about = f"{self._config.model} {compression}"
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        batches = cycle(synthetic_batches(compression, self.options))

        def synthetic() -> Tensor:
            return self._step(next(batches), RATE)

        progress(f"{about}: the first step")
        first_s = _seconds(synthetic, self._device)
        progress(f"{about}: the step alone")
        alone = measure(synthetic, self._device, self._windows)
        launch_s = launch_seconds(synthetic, self._device)
        loader, live = None, None
        if new_loader:
            progress(f"{about}: live")
            loader = new_loader()
            live = self._live(compression, loader)
        memory_bytes = _memory_bytes(self._device) if on_gpu else None
        if loader:
            loader.close()  # not before: its memory counts
        keep, pairs = compression.keep(SIZE), self._config.batch
        return Row(
            model=self._config.model,
            p=compression.p,
            drop=compression.drop,
            keep=keep,
            pairs=pairs,
            sample_cost=self._config.sample_cost(Stage(1.0, compression)),
            flops=simclr_flops(self._shape, pairs, keep),
            synthetic=alone.time,
            launch_s=launch_s,
            first_s=first_s,
            op=op,
            live=live.time if live else None,
            cpu_cores=live.cpu_cores if live else alone.cpu_cores,
            memory_bytes=memory_bytes,
        )

    def _live(self, compression: Compression, loader: Loader) -> Loop:
        def step() -> Tensor:
            return self._step(next_batch(loader, compression), RATE)

        return measure(step, self._device, self._windows)


def synthetic_batches(compression: Compression, options: LoaderOptions) -> list[Batch]:
    """BATCHES different ones on the device: normal values in places that the loader would draw."""
    generator = torch.Generator(options.device).manual_seed(0)
    batches = []
    for number in range(BATCHES):
        samples = np.arange(options.batch) + number * options.batch
        views = (_tokens(compression, options, samples, view, generator) for view in range(2))
        batches.append(Batch(tuple(views), samples, 0))
    return batches


def _tokens(
    compression: Compression,
    options: LoaderOptions,
    samples_N: np.typing.NDArray[np.int64],
    view: int,
    generator: torch.Generator,
) -> Tokens:
    grid, keep = compression.grid(SIZE), compression.keep(SIZE)
    kept = kept_patches(options.seed, 0, samples_N, view, grid**2, keep)
    values = torch.randn(
        (len(samples_N), keep, TOKEN_VALUES), device=options.device, generator=generator
    )
    keep_idx = torch.from_numpy(kept).to(options.device)
    return Tokens(values.to(options.dtype), keep_idx, compression.p, grid)


def op_time(compression: Compression, options: LoaderOptions) -> Timing:
    """Time the op on both views of a batch, with SimCLR's augmentation: seconds a batch."""
    sets = InputPool(options.batch, options.device).sets(compression, "blur")[:OP_SETS]

    def both_views(first: int) -> Callable[[], object]:
        pair = list(islice(cycle(sets), first, first + 2))

        def call() -> list[Tensor]:
            return [
                augment_patchify(
                    x.crops_NHWC, x.params_NP, x.keep_idx_NL, compression.p, options.dtype
                )
                for x in pair
            ]

        return call

    calls = [both_views(first) for first in range(0, len(sets), 2)]
    return time_captured(calls, options.device, OP_RUNS)


def free_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more: loaders, graphs, what a failure left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _seconds(step: Callable[[], object], device: torch.device) -> float:
    wait_for(device)
    began_s = time.perf_counter()
    step()
    wait_for(device)
    return time.perf_counter() - began_s


def _memory_bytes(device: torch.device) -> int:
    """Peak of torch's tensors since the last reset, and all that is held outside of torch."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_allocated(device) + max(0, others_bytes)
