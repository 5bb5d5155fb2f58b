"""Throughput of each part of training alone and of all together: images and tokens a second.

`accelssl bench-throughput` calls bench_throughput and write_page. Decoder, loader, op and step are
measured alone, then the step fed by the loader, as training has it, for each model and compression;
beside them torchvision's loader and the matrix peak of the device. On a machine without a GPU a
small plan is measured, so that the command works everywhere.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from accelssl.benchmarks.matrix_peak import MatrixPeak, matrix_peak
from accelssl.benchmarks.result_files import ResultFiles
from accelssl.benchmarks.throughput.page import page_name
from accelssl.benchmarks.throughput.pictures import make_set
from accelssl.benchmarks.throughput.plan import Plan, check
from accelssl.benchmarks.throughput.result import ThroughputBench
from accelssl.benchmarks.throughput.row import Row, SourceTime
from accelssl.benchmarks.throughput.sources import Sources
from accelssl.benchmarks.throughput.steps import ModelSteps, free_memory, op_time
from accelssl.benchmarks.timing import Timing
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.order import batches_per_epoch
from accelssl.pipeline.loader import Loader
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.shards.storage.storage import Location
from accelssl.train.config import recipes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import constant
from accelssl.train.log.environment import environment
from accelssl.train.objective import build
from accelssl.train.precision import pick_precision
from accelssl.train.session import loader_options

NO_END = 1e12
_VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
)


def bench_throughput(
    device: torch.device,
    plan: Plan,
    *,
    shards: Location | None = None,
    progress: Callable[[str], None] = lambda doing: None,
    on_row: Callable[[ThroughputBench], object] = lambda so_far: None,
) -> ThroughputBench:
    """Measure a plan. `progress` hears what is measured next, `on_row` what is known after a row.

    shards: a set to read; without one a set of pictures at hand is made for the time. A row that
    fails, for want of memory for example, is a note. Raises UserError for a plan that makes no
    sense, for a set that cannot be read or is smaller than a batch, and where no pictures are.
    """
    check(plan)
    measurement = _Measurement(device, plan, progress, on_row)
    if not plan.has_data:
        return measurement.run(None, "fixed tokens, no pictures")
    if shards is not None:
        opened = open_shards(shards)
        batches_per_epoch(len(opened.split("train")), plan.batch, 1)
        return measurement.run(opened, f"{len(opened.split('train')):,} images of {shards}")
    with tempfile.TemporaryDirectory(prefix="accelssl-bench-") as folder:
        path, what = make_set(Path(folder), plan.batch * plan.set_batches, progress)
        return measurement.run(open_shards(path), what)


def write_page(bench: ThroughputBench, files: ResultFiles) -> Path:
    """Write throughput_<card>_<yyyymm>.md, .json and .png; the path of the page."""
    from accelssl.benchmarks.throughput.plot import write_plot

    path = write_json(bench, files).with_suffix(".md")
    picture = path.with_suffix(".png")
    path.write_text(bench.to_markdown(picture.name))
    if bench.rows:
        write_plot(bench, picture)
    return path


def write_json(bench: ThroughputBench, files: ResultFiles) -> Path:
    """Write what is known, throughput_<card>_<yyyymm>.json; its path."""
    path = files.page(page_name(bench)).with_suffix(".json")
    path.write_text(bench.to_json() + "\n")
    return path


@dataclass
class _Measurement:
    """The measurement under way: what was found so far."""

    device: torch.device
    plan: Plan
    progress: Callable[[str], None]
    on_row: Callable[[ThroughputBench], object]
    peak: MatrixPeak | None = None
    copy_s: float | None = None
    sources: list[SourceTime] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.perf_counter)

    def run(self, shards: ShardSet | None, pictures: str) -> ThroughputBench:
        precision = pick_precision("auto", self.device)
        location = shards.location if shards else ""
        configs = [self._config(model, location, precision) for model in self.plan.models]
        if self.plan.has_steps:
            refuse_unknown_models(configs)
        self.pictures, self.environment = pictures, measured_environment(self.device)
        new_loader = self._measure_sources(shards, configs[0]) if shards else None
        if self.plan.has_steps:
            self.progress("matrix products")
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            self.peak = matrix_peak(self.device, dtype)
            ops: dict[Compression, Timing] = {}
            for config in configs:
                self._measure_model(config, new_loader, ops)
        return self._found()

    def _config(self, model: str, location: str, precision: str) -> TrainConfig:
        plan = self.plan
        return recipes.simclr(
            model,
            location,
            NO_END,
            constant(plan.compressions[0]),
            batch=plan.batch,
            threads=plan.threads,
            precision=precision,
        )

    def _measure_sources(self, shards: ShardSet, config: TrainConfig) -> Callable[[], Loader]:
        options = loader_options(config, self.device)
        sources = Sources(shards, options, self.plan, self.progress)
        # The loader first: the files of a set that was just made are dropped from the cache.
        if self.plan.has("loader"):
            self.sources += sources.loader()
        if self.plan.only in (None, "decoder", "loader"):
            self.sources.append(sources.decoder())
        if self.plan.only is None:
            self.copy_s = sources.copy_s()
        if self.plan.has("loader") and self.plan.has_peers:
            self.sources += filter(None, [sources.torchvision()])
            self.notes.append("FFCV-SSL is not compared: it reads a format of its own.")
        self.notes += sources.notes
        free_memory(self.device)
        self.on_row(self._found())
        return sources.new_loader

    def _measure_model(
        self,
        config: TrainConfig,
        new_loader: Callable[[], Loader] | None,
        ops: dict[Compression, Timing],
    ) -> None:
        free_memory(self.device)  # of the model before
        steps: ModelSteps | None = None
        live = new_loader if self.plan.has_live else None
        for compression in self.plan.compressions:
            try:
                if steps is None:
                    steps = ModelSteps(config, self.device, self.plan.windows)
                if compression not in ops:
                    self.progress(f"the op alone, {compression}")
                    ops[compression] = op_time(compression, steps.options)
                row = steps.row(compression, ops[compression], live, self.progress)
                self.rows.append(row)
            except RuntimeError as error:  # torch.OutOfMemoryError is one: the others go on
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                self.notes.append(f"{config.model} {compression} is left out: {reason}")
                steps = None  # whatever state it was left in
            free_memory(self.device)
            self.on_row(self._found())

    def _found(self) -> ThroughputBench:
        return ThroughputBench(
            environment=self.environment,
            pictures=self.pictures,
            batch=self.plan.batch,
            only=self.plan.only,
            peak=self.peak,
            copy_s=self.copy_s,
            sources=tuple(self.sources),
            rows=tuple(self.rows),
            notes=tuple(self.notes),
            elapsed_s=time.perf_counter() - self.began_s,
        )


def refuse_unknown_models(configs: Iterable[TrainConfig]) -> None:
    """Raise UserError for an unknown model before any measurement."""
    with torch.device("meta"):
        for config in configs:
            build(config)


def measured_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware, command, and the variables that affect speed on a GPU."""
    found = environment(device)
    for package in ("torchvision", "pillow"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if device.type == "cuda":
        found["CUDA"] = torch.version.cuda
        for variable in _VARIABLES:
            found[variable] = os.environ.get(variable, "not set")
    return found
