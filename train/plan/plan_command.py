"""The command `accelssl plan`: from options to text."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline.draws.order import batches_per_epoch
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.shards.storage.storage import absolute
from accelssl.train.config.budget import parse_units
from accelssl.train.config.compression_options import AUTO as AUTO_SCHEDULE
from accelssl.train.config.compression_options import Compressing, refuse_contradictions
from accelssl.train.config.config import TrainConfig, override
from accelssl.train.config.flops import ModelShape, step_flops
from accelssl.train.config.new_config import named_recipe, new_config
from accelssl.train.device import pick_device
from accelssl.train.objective import build
from accelssl.train.plan.batch_choice import AUTO
from accelssl.train.plan.bench_speed import bench_speed
from accelssl.train.plan.plan import Speed, budget_in, check_hours, equivalent_budget, plan_run
from accelssl.train.plan.plan_pages import plan_json, plan_text
from accelssl.train.plan.probe_speed import probe_speed
from accelssl.train.precision import pick_precision
from accelssl.train.ranks.distributed import Ranks

# A placeholder until the budget is computed.
ENDLESS = 1e15


@dataclass(frozen=True)
class Asked:
    """The options of a run to plan, as for `accelssl train`; options: fields of TrainConfig.

    At most one of budget, hours and epochs is given; none if a recipe has the budget.
    """

    data: str | None
    algo: str | None = None
    recipe: str | None = None
    compression: Compressing = (None, None, None)
    small: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    budget: str | None = None
    hours: float | None = None
    epochs: float | None = None

    def config(self) -> TrainConfig:
        """Return the configuration, with an infinite budget if the budget is to be found."""
        is_open = self.hours is not None or self.epochs is not None
        units = parse_units(self.budget) if self.budget is not None else None
        _refuse_to_choose(self.compression)
        named = named_recipe(self.recipe, self.algo, self.small)
        refuse_contradictions(self.compression)
        return new_config(
            algo=self.algo,
            data=self.data,
            compression=self.compression,
            small=self.small,
            options=self.options | {"budget": ENDLESS if is_open else units},
            named=named,
            may_choose=False,
        )

    def command(self, budget: float, gpus: int) -> str:
        """Return the command line that trains the run, with the options as given."""
        is_open = self.hours is not None or self.epochs is not None
        patch, drop, schedule = self.compression
        given: dict[str, Any] = {
            "--recipe": self.recipe,
            "--algo": self.algo,
            "--data": self.data,
            "--out": "run",
            "--budget": f"{budget:.10g}" if is_open else self.budget,
            "--patch": patch,
            "--drop": drop,
            "--schedule": schedule,
            "--small": self.small or None,
        }
        given |= {option_of(name): value for name, value in self.options.items()}
        words = ["accelssl", "train"]
        if gpus > 1:
            words = ["torchrun", "--nproc-per-node", f"{gpus}", "-m", *words]
        for option, value in given.items():
            if value is not None:
                words += [option] if value is True else [option, f"{value}"]
        return shlex.join(words)


@dataclass(frozen=True)
class Where:
    """The machine of the run. gpus: None is the one available device. bench: measurements of
    another machine."""

    device: str = "auto"
    gpus: int | None = None
    bench: Path | None = None
    threads: int = 0
    precision: str = "auto"


def plan_command(
    asked: Asked,
    where: Where,
    *,
    as_json: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> str:
    """Return the plan as text or JSON, with the command that trains it.

    Raise UserError for options that `accelssl train` refuses, for more than one of budget, hours
    and epochs, for a budget too small for one step, and for GPUs that are neither there nor
    measured.
    """
    _refuse_two_ways(asked)
    _refuse_auto_batch(asked)
    if asked.hours is not None:
        check_hours(asked.hours)  # before anything is measured
    gpus = _gpus(where)
    config = asked.config()
    shards = open_shards(absolute(config.data))
    images = len(shards.split("train"))
    batches_per_epoch(images, Ranks(world=gpus).share(config.batch), gpus)
    if asked.epochs is not None:
        config = replace(config, budget=equivalent_budget(asked.epochs, images, config))
    flops = _step_flops(config)
    speed = _speed(config, shards, where, gpus, flops, progress)
    if asked.hours is not None:
        config = replace(config, budget=budget_in(asked.hours, config, speed))
    plan = plan_run(config, images, gpus, [each / config.batch for each in flops], speed)
    command = asked.command(config.budget, gpus)
    return plan_json(plan, config, command) if as_json else plan_text(plan, config, command)


def _refuse_two_ways(asked: Asked) -> None:
    ways = {
        "--budget": asked.budget,
        "--hours": asked.hours,
        "--epochs-equivalent": asked.epochs,
    }
    given = [option for option, value in ways.items() if value is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} were given together.", "Give one of them.")


def _refuse_to_choose(compression: Compressing) -> None:
    """Raise UserError for --schedule auto: its stages are unknown before the run."""
    if compression[2] == AUTO_SCHEDULE:
        raise UserError(
            "A run with --schedule auto chooses its compressions during training: its cost is "
            "unknown before.",
            "Plan with --patch 16 --drop 0, the most expensive compression.",
        )


def _refuse_auto_batch(asked: Asked) -> None:
    if asked.options.get("batch") == AUTO:
        raise UserError(
            "A plan needs a number of images: --batch auto is measured when a run starts.",
            "Give the number that train --batch auto has printed, or leave it out for the default.",
        )


def _gpus(where: Where) -> int:
    """Return the number of devices to plan for. Raise UserError if there is none to measure."""
    if where.gpus is None:
        return 1
    if where.gpus < 1:
        raise UserError(f"--gpus {where.gpus} makes no sense.", "Use 1 or more.")
    if where.bench is None and (where.device == "cpu" or not torch.cuda.is_available()):
        raise UserError(
            f"--gpus {where.gpus}: there is no GPU here whose speed could be measured.",
            "Give --bench FILE, what bench-throughput --out wrote on such a machine, or leave "
            "--gpus out to plan for this CPU.",
        )
    return where.gpus


def _step_flops(config: TrainConfig) -> list[int]:
    with torch.device("meta"):
        shape = ModelShape.of(build(config))
    return [step_flops(shape, config, stage) for stage in config.schedule.stages]


def _speed(
    config: TrainConfig,
    shards: ShardSet,
    where: Where,
    gpus: int,
    flops: list[int],
    progress: Callable[[str], None],
) -> Speed:
    if where.bench is not None:
        return bench_speed(where.bench, config, flops, gpus)
    device = pick_device(where.device)
    here = {
        "precision": pick_precision(where.precision, device),
        "threads": where.threads or max(1, len(os.sched_getaffinity(0)) // gpus),
    }
    return probe_speed(override(config, here), shards, device, gpus, progress)
