"""What is to be measured is what was asked for, or is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.benchmarks.throughput.plan import (
    GPU_CASES,
    Plan,
    default_plan,
    parse_compressions,
    parse_models,
    plan_of,
    strongest,
)
from accelssl.benchmarks.throughput.throughput import bench_throughput
from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NOTHING: dict[str, Any] = dict.fromkeys(
    ("only", "models", "compressions", "batch", "threads", "steps")
)


def plan_with(**given: Any) -> Plan:
    return plan_of(CPU, False, **NOTHING | given)


def test_the_plan_of_a_gpu_is_that_of_the_goals() -> None:
    plan = default_plan(GPU, quick=False)
    assert plan.models == ("vit_base_patch16_224", "vit_small_patch16_224")
    cases = [(16, 0), (16, 0.5), (16, 0.75), (30, 0), (30, 0.5), (48, 0.5)]
    assert [(c.p, c.drop) for c in plan.compressions] == cases
    assert plan.batch == 512


def test_what_is_given_replaces_the_default_and_nothing_else() -> None:
    plan = plan_with(compressions="16:0.75, 48:0.5", batch=4, steps=7, only="live")
    assert plan.compressions == (Compression(16, 0.75), Compression(48, 0.5))
    assert (plan.batch, plan.windows.steps, plan.only) == (4, 7, "live")
    default = default_plan(CPU, quick=False)
    assert (plan.models, plan.threads) == (default.models, default.threads)
    assert plan.windows.count == default.windows.count


@pytest.mark.parametrize(
    ("only", "parts"),
    [
        (None, {"has_steps", "has_live", "has_data"}),
        ("step", {"has_steps"}),
        ("live", {"has_steps", "has_live", "has_data"}),
        ("loader", {"has_data"}),
        ("decoder", {"has_data"}),
    ],
)
def test_one_part_alone_needs_no_more_than_itself(only: str | None, parts: set[str]) -> None:
    plan = plan_with(only=only)
    names = ("has_steps", "has_live", "has_data")
    assert {name for name in names if getattr(plan, name)} == parts


def test_lists_are_read_with_blanks_and_trailing_commas() -> None:
    assert parse_models(" a,b , ") == ("a", "b")
    assert parse_compressions("16:0,30:.5,") == (Compression(16, 0.0), Compression(30, 0.5))


def test_the_strongest_compression_keeps_the_fewest_patches() -> None:
    assert strongest(GPU_CASES) == Compression(48, 0.5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"compressions": "16"}, "'16'"),
        ({"compressions": "16:half"}, "'16:half'"),
        ({"compressions": "16:0:0"}, "'16:0:0'"),
        ({"compressions": "17:0"}, "17"),
        ({"compressions": "16:1.5"}, r"1\.5"),
        ({"compressions": "48:0.99"}, r"0\.99"),
        ({"compressions": ","}, "no compressions"),
        ({"compressions": "16:0,16:0.0"}, "p16 d0, p16 d0"),
        ({"models": ""}, "no models"),
        ({"batch": 1}, "--batch 1"),
        ({"threads": 0}, "--threads 0"),
        ({"threads": 5000}, "--threads 5000"),
        ({"steps": 0}, "--steps 0"),
        ({"only": "tokens"}, "--only tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        plan_with(**given)


def test_an_unknown_model_is_refused_before_anything_is_measured() -> None:
    heard: list[str] = []
    with pytest.raises(UserError, match="vit_tinny"):
        bench_throughput(
            CPU,
            plan_with(models="vit_tiny_patch16_224,vit_tinny", only="step"),
            progress=heard.append,
        )
    assert heard == []


def test_a_set_smaller_than_a_batch_is_refused(shard_dir: Path) -> None:
    with pytest.raises(UserError, match="40 training images do not fill one batch of 41"):
        bench_throughput(CPU, plan_with(batch=41), shards=shard_dir)
