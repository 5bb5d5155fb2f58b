"""A plan says before a run what the run will say afterwards."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.plan.plan import (
    IN_TURN,
    RunPlan,
    Speed,
    StageSpeed,
    budget_in,
    equivalent_budget,
    plan_run,
)
from accelssl.train.plan.plan_pages import plan_json, plan_text

CHEAP, DEAR = Compression(48, 0.5), Compression(30, 0.5)
TWO = Schedule((Stage(0.6, CHEAP), Stage(1.0, DEAR)))


def config(schedule: Schedule = TWO, **options: Any) -> TrainConfig:
    chosen: dict[str, Any] = {"algo": "moco", "budget": 1e5, "batch": 16} | options
    return TrainConfig(model="vit_tiny_patch16_224", data="", schedule=schedule, **chosen)


def speed(*steps: tuple[float, float | None], meanwhile: bool = True) -> Speed:
    return Speed(tuple(StageSpeed(*step) for step in steps), meanwhile, ())


def planned(asked: TrainConfig, of: Speed, images: int = 1000) -> RunPlan:
    return plan_run(asked, images, 1, [1e9, 2e9][: len(asked.schedule.stages)], of)


def trained_steps(asked: TrainConfig) -> list[int]:
    """As the training loop counts: charge each step, ask the schedule before each."""
    spent, counts = 0.0, [0] * len(asked.schedule.stages)
    while spent < asked.budget:
        stage = asked.schedule.at(min(1.0, spent / asked.budget))
        counts[asked.schedule.stages.index(stage)] += 1
        spent += asked.batch * asked.sample_cost(stage)
    return counts


@pytest.mark.parametrize("algo", ["simclr", "moco", "dino"])
def test_its_steps_are_those_that_the_loop_will_make(algo: str) -> None:
    asked = config(algo=algo, budget=3e4)
    plan = planned(asked, speed((0.1, None), (0.2, None)))
    assert [stage.steps for stage in plan.stages] == trained_steps(asked)
    assert plan.images == plan.steps * 16
    assert plan.epochs == pytest.approx(plan.images / 1000)
    assert asked.budget <= plan.units < asked.budget + 16 * asked.sample_cost(TWO.stages[-1])
    cheap, dear = plan.stages
    assert (cheap.flops, dear.flops) == (cheap.images * 1e9, dear.images * 2e9)


def test_stages_of_equal_steps_are_fewer_steps_than_stages_of_equal_budget() -> None:
    asked = config(budget=3e5)
    plan = planned(asked, speed((0.1, None), (0.2, None)))
    cheap, dear = (asked.sample_cost(stage) for stage in TWO.stages)
    by_budget = (0.6 / cheap + 0.4 / dear) * 3e5 / 16
    by_steps = 3e5 / 16 / (0.6 * cheap + 0.4 * dear)
    assert plan.steps == pytest.approx(by_budget, abs=2)
    assert plan.steps_by_iterations == math.ceil(by_steps)
    assert plan.steps > plan.steps_by_iterations
    alone = planned(config(constant(DEAR)), speed((0.1, None)))
    assert alone.steps == alone.steps_by_iterations


def test_data_that_is_made_meanwhile_costs_time_only_where_it_is_too_slow() -> None:
    times = (0.1, 1000.0), (0.1, 80.0)
    plan = planned(config(), speed(*times))
    assert [stage.step_s for stage in plan.stages] == [0.1, 16 / 80]
    assert [stage.waits_for_data for stage in plan.stages] == [False, True]
    assert plan.stages[0].needed_images_per_s == pytest.approx(160)
    on_cpu = planned(config(), speed(*times, meanwhile=False))
    assert on_cpu.stages[0].step_s == pytest.approx(0.1 + 0.016)
    assert on_cpu.seconds_s == pytest.approx(sum(s.steps * s.step_s for s in on_cpu.stages))
    assert on_cpu.assumptions == (IN_TURN,) and not plan.assumptions


@pytest.mark.parametrize("hours", [0.05, 1.0, 8.0])
def test_the_budget_that_fits_some_hours_fills_them_and_no_more(hours: float) -> None:
    of = speed((0.1, 100.0), (0.3, None))
    units = budget_in(hours, config(), of)
    plan = planned(config(budget=units), of)
    assert 0.97 * hours * 3600 <= plan.seconds_s <= hours * 3600
    assert units == float(f"{units:.3g}")


@pytest.mark.parametrize("hours", [0.0, -1.0, math.nan, math.inf, 1e-5])
def test_hours_that_buy_nothing_are_refused(hours: float) -> None:
    with pytest.raises(UserError, match="--hours"):
        budget_in(hours, config(), speed((0.1, None), (0.3, None)))


def test_the_hours_that_are_advised_instead_are_enough() -> None:
    of = speed((0.1, None), (0.3, None))
    with pytest.raises(UserError) as refused:
        budget_in(1e-6, config(), of)
    advised = float(refused.value.remedy.split("--hours ")[1].split()[0])
    assert planned(config(budget=budget_in(advised, config(), of)), of).steps >= 1


def test_equivalent_epochs_are_the_papers_budgets() -> None:
    """104M units for 200 epochs of 130,000 images, MoCo-v3; 3075M for 400 of ImageNet, SimCLR."""
    assert equivalent_budget(200, 130_000, config()) == pytest.approx(104e6)
    simclr = config(algo="simclr")
    assert equivalent_budget(400, 1_281_167, simclr) / 1e6 == pytest.approx(3075, abs=0.5)
    assert equivalent_budget(1, 1, config(symmetric=True)) == pytest.approx(8)
    with pytest.raises(UserError, match="--epochs-equivalent 0"):
        equivalent_budget(0, 1, config())


def test_uncompressed_epochs_at_224_px_are_as_many_as_were_asked_for() -> None:
    asked = config(constant(UNCOMPRESSED), size=224)
    asked = replace(asked, budget=equivalent_budget(20, 16 * 50, asked))
    assert planned(asked, speed((0.1, None)), 16 * 50).epochs == pytest.approx(20)


def test_a_plan_needs_no_torch(tmp_path: Path) -> None:
    code = "import accelssl.train.plan.plan, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_it_is_json_too() -> None:
    plan = planned(config(), speed((0.1, 50.0), (0.2, 500.0)))
    facts = json.loads(plan_json(plan, config(), "accelssl train"))
    assert facts["steps"] == sum(stage["steps"] for stage in facts["stages"])
    assert [stage["waits_for_data"] for stage in facts["stages"]] == [True, False]
    assert facts["command"] == "accelssl train"
    assert facts["steps_by_iterations"] == plan.steps_by_iterations


def test_more_passes_over_few_images_than_anybody_makes_are_remarked_on() -> None:
    asked, of = config(), speed((0.1, 50.0), (0.2, 500.0))
    for images, is_said in ((1000, False), (50, True)):
        plan = planned(asked, of, images)
        said = f"Every image is shown {plan.epochs:,.0f} times"
        assert (said in plan_text(plan, asked, "accelssl train")) == is_said
