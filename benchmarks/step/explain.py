"""Where the time of a training step goes, part by part, against the least it could take.

`accelssl bench-throughput --only step --explain` calls explain_step and write_page. Each step is
timed first, then profiled; the peak of matrix products and the bandwidth of copies, by which its
floors are, are measured in the same run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accelssl.benchmarks.matrix_peak import MatrixPeak, matrix_peak
from accelssl.benchmarks.result_files import ResultFiles
from accelssl.benchmarks.step.floor import Peaks, floors
from accelssl.benchmarks.step.page import page_name
from accelssl.benchmarks.step.result import StepBench, StepRow, longest_kernels, part_times
from accelssl.benchmarks.step.trace import Marks, trace
from accelssl.benchmarks.throughput.plan import SIZE, Plan
from accelssl.benchmarks.throughput.step_windows import measure
from accelssl.benchmarks.throughput.steps import RATE, free_memory, synthetic_batches
from accelssl.benchmarks.throughput.throughput import (
    NO_END,
    measured_environment,
    refuse_unknown_models,
)
from accelssl.benchmarks.timing import Copies
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.compression import Compression
from accelssl.train.config import recipes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.flops import ModelShape
from accelssl.train.config.schedule import constant
from accelssl.train.objective import build
from accelssl.train.optim.adamw import adamw
from accelssl.train.precision import pick_precision
from accelssl.train.session import loader_options
from accelssl.train.step import Step

GPU_STEPS, CPU_STEPS = 5, 2
COPY_RUNS = 5


def explain_step(
    device: torch.device,
    plan: Plan,
    *,
    progress: Callable[[str], None] = lambda doing: None,
    on_row: Callable[[StepBench], object] = lambda so_far: None,
) -> StepBench:
    """Profile the step of every model and compression of a plan. `progress` hears what is measured
    next, `on_row` what is known after a row.

    A row that fails, for want of memory for example, is a note. Raises UserError for a model that
    does not exist.
    """
    began_s = time.perf_counter()
    precision = pick_precision("auto", device)
    configs = [config_of(plan, model, precision) for model in plan.models]
    refuse_unknown_models(configs)
    found_here = measured_environment(device)
    progress("matrix products and copies")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    peak = matrix_peak(device, dtype)
    copy_bytes_per_s = Copies(device, COPY_RUNS).bytes_per_s
    explanation = _Explanation(
        device, plan, found_here, began_s, peak, copy_bytes_per_s, progress, on_row
    )
    for config in configs:
        explanation.add(config)
    return explanation.found()


def write_page(bench: StepBench, files: ResultFiles) -> Path:
    """Write step_<card>_<yyyymm>.md and .json; the path of the page."""
    path = write_json(bench, files).with_suffix(".md")
    path.write_text(bench.to_markdown())
    return path


def write_json(bench: StepBench, files: ResultFiles) -> Path:
    """Write what is known, step_<card>_<yyyymm>.json; its path."""
    path = files.page(page_name(bench)).with_suffix(".json")
    path.write_text(bench.to_json() + "\n")
    return path


def config_of(plan: Plan, model: str, precision: str) -> TrainConfig:
    """Return the settings of a SimCLR run that affect its steps."""
    return recipes.simclr(
        model, "", NO_END, constant(plan.compressions[0]), batch=plan.batch, precision=precision
    )


@dataclass
class _Explanation:
    """The measurement under way: what was found so far."""

    device: torch.device
    plan: Plan
    environment: dict[str, Any]
    began_s: float
    peak: MatrixPeak
    copy_bytes_per_s: float
    progress: Callable[[str], None]
    on_row: Callable[[StepBench], object]
    rows: list[StepRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, config: TrainConfig) -> None:
        """Add the rows of a model; one Step serves all compressions."""
        step: _MarkedStep | None = None
        for compression in self.plan.compressions:
            self.progress(f"{config.model} {compression}")
            try:
                step = step or _MarkedStep(config, self.device)
                self.rows.append(self._row(step, compression))
            except RuntimeError as error:  # torch.OutOfMemoryError is one: the others go on
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                self.notes.append(f"{config.model} {compression} is left out: {reason}")
                step = None  # whatever state it was left in
            free_memory(self.device)
            self.on_row(self.found())

    def _row(self, marked: "_MarkedStep", compression: Compression) -> StepRow:
        config, keep = marked.config, compression.keep(SIZE)
        batches = cycle(synthetic_batches(compression, loader_options(config, self.device)))

        def step() -> Tensor:
            return marked.step(next(batches), RATE)

        timed = measure(step, self.device, self.plan.windows).time
        traced = trace(step, marked.marks.mark, self.device, self._steps)
        least = floors(
            marked.shape,
            config.batch,
            keep,
            marked.trained,
            2 if config.precision == "bf16" else 4,
            Peaks(self.peak.flops_per_s, self.copy_bytes_per_s),
        )
        return StepRow(
            model=config.model,
            p=compression.p,
            drop=compression.drop,
            tokens=keep + marked.shape.prefix,
            pairs=config.batch,
            step=timed,
            parts=part_times(traced, least),
            longest=longest_kernels(traced),
        )

    @property
    def _steps(self) -> int:
        return GPU_STEPS if self.device.type == "cuda" else CPU_STEPS

    def found(self) -> StepBench:
        return StepBench(
            environment=self.environment,
            steps=self._steps,
            peak=self.peak,
            copy_bytes_per_s=self.copy_bytes_per_s,
            rows=tuple(self.rows),
            notes=tuple(self.notes),
            elapsed_s=time.perf_counter() - self.began_s,
        )


class _MarkedStep:
    """The Step of a model, with marks in it."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config = config
        objective = build(config).to(device)
        assert isinstance(objective, SimCLR)
        self.shape = ModelShape.of(objective)
        self.trained = sum(p.numel() for p in objective.parameters() if p.requires_grad)
        self.marks = Marks(objective.encoder, device)
        self.step = Step(objective, adamw(objective, config.weight_decay), config.precision)
