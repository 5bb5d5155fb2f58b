"""Forecast of a run: steps, images, epochs, units, operations and seconds of each stage. No torch.

Stages end at shares of the budget: N = sum over stages of B_s / (batch C_s). If they ended at
shares of the steps, N = B / (batch mean C) would be smaller. Runs use shares of the budget; the
plan reports both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from accelssl.errors import UserError
from accelssl.formats import duration
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.config import TrainConfig

EQUIVALENT_SIZE = 224


IN_TURN = (
    "on a CPU steps and data loading alternate: s/step is the time of both, and the image rates "
    "are of each alone"
)


@dataclass(frozen=True)
class StageSpeed:
    """Seconds of a step without data, and the loader's images per second alone, of all GPUs
    together."""

    step_s: float
    loader_images_per_s: float | None


@dataclass(frozen=True)
class Speed:
    """A StageSpeed for each stage of a schedule, with the assumptions.

    loads_meanwhile: true if data is prepared during steps, as on a GPU; else the times add.
    """

    stages: tuple[StageSpeed, ...]
    loads_meanwhile: bool
    assumptions: tuple[str, ...]

    def seconds(self, stage: int, batch: int) -> float:
        """Return the seconds of a step of that stage, with its data."""
        speed = self.stages[stage]
        data_s = batch / speed.loader_images_per_s if speed.loader_images_per_s else 0.0
        return max(speed.step_s, data_s) if self.loads_meanwhile else speed.step_s + data_s


@dataclass(frozen=True)
class StagePlan:
    """The forecast of one stage. needed_images_per_s: the loader rate at which steps never wait."""

    until: float
    p: int
    drop: float
    sample_cost: float
    steps: int
    images: int
    epochs: float
    units: float
    flops: float
    step_s: float
    seconds_s: float
    needed_images_per_s: float
    loader_images_per_s: float | None

    @property
    def waits_for_data(self) -> bool:
        """Return true if the loader is slower than needed."""
        given = self.loader_images_per_s
        return given is not None and given < self.needed_images_per_s


@dataclass(frozen=True)
class RunPlan:
    """The forecast of a run. steps_by_iterations: the steps if `until` were a share of the
    steps."""

    budget: float
    batch: int
    set_images: int
    gpus: int
    stages: tuple[StagePlan, ...]
    steps_by_iterations: int
    assumptions: tuple[str, ...]

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def images(self) -> int:
        return sum(stage.images for stage in self.stages)

    @property
    def units(self) -> float:
        return sum(stage.units for stage in self.stages)

    @property
    def flops(self) -> float:
        return sum(stage.flops for stage in self.stages)

    @property
    def seconds_s(self) -> float:
        return sum(stage.seconds_s for stage in self.stages)

    @property
    def epochs(self) -> float:
        return self.images / self.set_images


def plan_run(
    config: TrainConfig,
    set_images: int,
    gpus: int,
    image_flops: Sequence[float],
    speed: Speed,
) -> RunPlan:
    """Plan `config` on a set of set_images. image_flops: operations per image in each stage."""
    stages, batch = config.schedule.stages, config.batch
    costs = [config.sample_cost(stage) for stage in stages]
    steps = steps_bought(
        config.budget, [(s.until, batch * cost) for s, cost in zip(stages, costs, strict=True)]
    )
    planned = []
    for i, (stage, cost, count) in enumerate(zip(stages, costs, steps, strict=True)):
        step_s, images = speed.seconds(i, batch), count * batch
        planned.append(
            StagePlan(
                until=stage.until,
                p=stage.compression.p,
                drop=stage.compression.drop,
                sample_cost=cost,
                steps=count,
                images=images,
                epochs=images / set_images,
                units=images * cost,
                flops=images * image_flops[i],
                step_s=step_s,
                seconds_s=count * step_s,
                needed_images_per_s=batch / speed.stages[i].step_s,
                loader_images_per_s=speed.stages[i].loader_images_per_s,
            )
        )
    knows_loader = any(each.loader_images_per_s for each in speed.stages)
    in_turn = (IN_TURN,) if knows_loader and not speed.loads_meanwhile else ()
    return RunPlan(
        budget=config.budget,
        batch=batch,
        set_images=set_images,
        gpus=gpus,
        stages=tuple(planned),
        steps_by_iterations=steps_by_iterations(config),
        assumptions=(*speed.assumptions, *in_turn),
    )


def steps_by_iterations(config: TrainConfig) -> int:
    """Return N = B / (batch mean C), rounded up: stages that end at shares of the steps."""
    mean_cost = sum(
        share * config.sample_cost(stage)
        for share, stage in zip(_shares(config), config.schedule.stages, strict=True)
    )
    return math.ceil(config.budget / (config.batch * mean_cost) - 1e-9)


def check_hours(hours: float) -> None:
    """Raise UserError unless `hours` is positive and finite."""
    if not 0 < hours < math.inf:
        raise UserError(f"--hours {hours:g} makes no sense.", "Use a value above 0.")


def budget_in(hours: float, config: TrainConfig, speed: Speed) -> float:
    """Return the units that fit into `hours`, to three digits, rounded down.

    The budget of `config` is ignored. Raise UserError for hours that are invalid or too short for
    one step.
    """
    check_hours(hours)
    stages, batch = config.schedule.stages, config.batch
    costs = [batch * config.sample_cost(stage) for stage in stages]
    unit_s = sum(
        share * speed.seconds(i, batch) / costs[i] for i, share in enumerate(_shares(config))
    )
    # Each stage may overshoot its share by less than a step.
    spare_s = sum(speed.seconds(i, batch) for i in range(len(stages)))
    units = (hours * 3600 - spare_s) / unit_s
    if units < max(costs):
        dearest_s = spare_s + max(costs) * unit_s
        raise UserError(
            f"--hours {hours:g} is too short: one step of the most expensive stage takes "
            f"{duration(dearest_s)}.",
            f"Use --hours {dearest_s / 3600 * 1.1:.2g} or more, or a smaller --batch.",
        )
    scale = 10 ** (math.floor(math.log10(units)) - 2)
    return max(float(math.floor(units / scale) * scale), max(costs))


def equivalent_budget(epochs: float, set_images: int, config: TrainConfig) -> float:
    """Return the units of `epochs` uncompressed epochs of 224 px crops, as the paper counts
    budgets.

    MoCo-v3 costs 4 units per image. Raise UserError for invalid epochs.
    """
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs-equivalent {epochs:g} makes no sense.", "Use a value above 0.")
    method = replace(config.method, size=EQUIVALENT_SIZE)
    cost = method.sample_cost(UNCOMPRESSED, config.convention)
    return epochs * set_images * cost


def _shares(config: TrainConfig) -> list[float]:
    """Return the share of the budget of each stage."""
    ends = [0.0, *(stage.until for stage in config.schedule.stages)]
    return [b - a for a, b in pairwise(ends)]
