"""Cost of each stage of a run: counted in units and realised in seconds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accelssl.train.config.cost import Convention, moco_cost, simclr_cost
from accelssl.train.report.history import History, finite

WARM_UP = 3
"""Steps for compiling and filling queues at the start of a stage or after a resume."""
ENOUGH_STEPS = 20
"""Fewest steps of a stage for a reliable price of its units."""

# DINO's cost depends on its local crops too: it needs a measured or uncompressed stage.
COSTS = {"simclr": simclr_cost, "moco": moco_cost}


@dataclass(frozen=True)
class StageRun:
    """One part of a run under one compression.

    `keep`: patch tokens of a view. `sample_cost`: units per image. `image_flops`: operations per
    image, NaN if not logged. The `*_from` and `*_to` bounds are cumulative: units, images, training
    seconds. The `steady_*` exclude WARM_UP steps at the start and after each resume.
    """

    p: float
    drop: float
    keep: float
    sample_cost: float
    spent_from: float
    spent_to: float
    images_from: float
    images_to: float
    elapsed_from_s: float
    elapsed_to_s: float
    image_flops: float
    steady_steps: int
    steady_spent: float
    steady_images: float
    steady_s: float

    @property
    def is_steady(self) -> bool:
        """Return true if enough steps without start-up remain to price a unit."""
        return self.steady_steps >= ENOUGH_STEPS - WARM_UP and self.steady_s > 0

    @property
    def spent(self) -> float:
        return self.spent_to - self.spent_from

    @property
    def images(self) -> float:
        return self.images_to - self.images_from

    @property
    def flops(self) -> float:
        return self.images * self.image_flops

    @property
    def training_s(self) -> float:
        return self.elapsed_to_s - self.elapsed_from_s

    @property
    def images_per_s(self) -> float | None:
        return self.images / self.training_s if self.training_s > 0 else None

    @property
    def steady_images_per_s(self) -> float | None:
        return self.steady_images / self.steady_s if self.is_steady else None

    @property
    def units_per_s(self) -> float | None:
        return self.spent / self.training_s if self.training_s > 0 else None


@dataclass(frozen=True)
class Uncompressed:
    """Cost, rate and operations of an uncompressed image (p = 16, drop = 0); None if unknown.

    `steady_images_per_s` is the rate without start-up, None if there are too few steps.
    """

    sample_cost: float | None
    images_per_s: float | None
    image_flops: float | None = None
    steady_images_per_s: float | None = None


def stage_runs(history: History) -> tuple[StageRun, ...]:
    """Split the run where the compression changes; empty if no step was logged.

    Costs between two log lines count to the stage of the later line.
    """
    steps = history.steps
    if not len(steps):
        return ()
    changes = (np.diff(steps.p) != 0) | (np.diff(steps.drop) != 0)
    lasts = [*np.flatnonzero(changes).tolist(), len(steps) - 1]
    firsts = [0, *(last + 1 for last in lasts[:-1])]
    steady = _steady_steps(history, firsts)
    # Amounts of single steps, 0 during start-up.
    by_step = (
        np.diff(total, prepend=0.0) for total in (steps.spent, steps.images, steps.elapsed_s)
    )
    steady_spent, steady_images, steady_s = (amounts * steady for amounts in by_step)
    stages = []
    spent = images = elapsed_s = 0.0
    for first, last in zip(firsts, lasts, strict=True):
        of_stage = slice(first, last + 1)
        stage = StageRun(
            p=float(steps.p[last]),
            drop=float(steps.drop[last]),
            keep=float(steps.keep[last]),
            sample_cost=float(steps.sample_cost[last]),
            spent_from=spent,
            spent_to=float(steps.spent[last]),
            images_from=images,
            images_to=float(steps.images[last]),
            elapsed_from_s=elapsed_s,
            elapsed_to_s=float(steps.elapsed_s[last]),
            image_flops=float(steps.image_flops[last]),
            steady_steps=int(steady[of_stage].sum()),
            steady_spent=float(steady_spent[of_stage].sum()),
            steady_images=float(steady_images[of_stage].sum()),
            steady_s=float(steady_s[of_stage].sum()),
        )
        spent, images, elapsed_s = stage.spent_to, stage.images_to, stage.elapsed_to_s
        stages.append(stage)
    return tuple(stages)


def _steady_steps(history: History, firsts: list[int]) -> npt.NDArray[np.bool_]:
    """Mark the logged steps with at least WARM_UP steps of their stage and process before them."""
    resumed = np.searchsorted(history.steps.step, history.resumes, side="right")
    steady = np.ones(len(history.steps), dtype=np.bool_)
    for start in [*firsts, *resumed.tolist()]:
        steady[start : start + WARM_UP] = False
    return steady


def uncompressed(history: History, stages: tuple[StageRun, ...]) -> Uncompressed:
    """Return cost and rate of an uncompressed image.

    The rate is measured or None. Sources in order: the log's baseline line, "baseline" in
    environment.json, the run's own uncompressed stages. The cost has the same sources, and then the
    formula (accelssl.train.config.cost).
    """
    plain = [stage for stage in stages if stage.p == 16 and stage.drop == 0]
    seconds_s = sum(stage.training_s for stage in plain)
    own_rate = sum(stage.images for stage in plain) / seconds_s if seconds_s > 0 else None
    noted = history.environment.get("baseline")
    rates: list[float | None] = [own_rate]
    costs = [stage.sample_cost for stage in plain[:1]] + _cost_by_formula(history)
    flops = [finite(stage.image_flops) for stage in plain[:1]]
    for source in (noted, history.baseline):
        if isinstance(source, dict):
            flops.insert(0, finite(source.get("image_flops")))
            rates.insert(0, finite(source.get("images_per_s")))
            cost = finite(source.get("sample_cost"))
            costs[:0] = [] if cost is None else [cost]
    # The baseline measurement excludes its own warm-up.
    steady_rates = [*rates[:-1], whole_run(tuple(plain)).steady_images_per_s if plain else None]
    return Uncompressed(
        sample_cost=costs[0] if costs else None,
        images_per_s=next((rate for rate in rates if rate is not None), None),
        image_flops=next((count for count in flops if count is not None), None),
        steady_images_per_s=next((rate for rate in steady_rates if rate is not None), None),
    )


def _cost_by_formula(history: History) -> list[float]:
    config = history.config
    cost, size = COSTS.get(str(config.get("algo"))), finite(config.get("size"))
    convention = config.get("convention", Convention.PATCHES196)
    if cost is None or size is None or convention not in tuple(Convention):
        return []
    patches = (int(size) // 16) ** 2
    pairs = 2 if config.get("symmetric") is True else 1
    return [pairs * cost(patches, patches, Convention(convention))]


def whole_run(stages: tuple[StageRun, ...]) -> StageRun:
    """Combine all stages (at least one) into one; p, drop and keep are those of the last.

    `sample_cost` and `image_flops` are means over the images of the run.
    """
    last = stages[-1]
    mean_cost = last.spent_to / last.images_to if last.images_to > 0 else last.sample_cost
    return StageRun(
        p=last.p,
        drop=last.drop,
        keep=last.keep,
        sample_cost=mean_cost,
        spent_from=0.0,
        spent_to=last.spent_to,
        images_from=0.0,
        images_to=last.images_to,
        elapsed_from_s=0.0,
        elapsed_to_s=last.elapsed_to_s,
        image_flops=sum(stage.flops for stage in stages) / max(last.images_to, 1),
        steady_steps=sum(stage.steady_steps for stage in stages),
        steady_spent=sum(stage.steady_spent for stage in stages),
        steady_images=sum(stage.steady_images for stage in stages),
        steady_s=sum(stage.steady_s for stage in stages),
    )


def counted_speed_up(stage: StageRun, plain: Uncompressed) -> float | None:
    """Return the units of an uncompressed image over those of an image of this stage."""
    if plain.sample_cost is None or stage.sample_cost <= 0:
        return None
    return plain.sample_cost / stage.sample_cost


def realised_speed_up(stage: StageRun, plain: Uncompressed) -> float | None:
    """Return images per second of this stage over the uncompressed rate, if measured."""
    if not plain.images_per_s or stage.images_per_s is None:
        return None
    return stage.images_per_s / plain.images_per_s
