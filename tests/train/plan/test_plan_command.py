"""What is planned is what the printed command trains; what cannot be is refused by name."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.flops import ModelShape, step_flops
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.objective import build
from accelssl.train.plan import plan_command as planning
from accelssl.train.plan.bench_speed import bench_speed
from accelssl.train.plan.plan import Speed, StageSpeed
from accelssl.train.plan.plan_command import Asked, Where, plan_command
from accelssl.train.plan.probe_speed import SCALING
from tests import small_vit
from tests.train.log.run_log import lines

TINY = "vit_tiny_patch16_224"
BENCH = Path(__file__).parents[3] / "benchmarks" / "results" / "throughput_h100_202611.json"


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second a step, however many stages."""

    def instead(config: TrainConfig, *_: Any) -> Speed:
        return Speed((StageSpeed(0.1, 1e3),) * len(config.schedule.stages), True, ("so be it",))

    monkeypatch.setattr(planning, "probe_speed", instead)


def asked(shards: Path, **chosen: Any) -> Asked:
    options = {"model": small_vit.NAME, "batch": 8} | chosen.pop("options", {})
    return Asked(**({"data": str(shards), "options": options} | chosen))


def facts(request: Asked, where: Where = Where("cpu")) -> dict[str, Any]:  # noqa: B008, frozen
    found: dict[str, Any] = json.loads(plan_command(request, where, as_json=True))
    return found


@pytest.mark.usefixtures("known_speed")
def test_the_printed_command_trains_what_was_planned(
    shard_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = [{"until": 0.5, "p": 48, "drop": 0.5}, {"until": 1.0, "p": 40, "drop": 0.5}]
    schedule = tmp_path / "schedule.json"
    schedule.write_text(json.dumps(stages))
    request = asked(
        shard_dir, algo="moco", budget="20", small=True, compression=(None, None, schedule)
    )
    plan = facts(request)
    command = shlex.split(plan["command"])
    assert command[:2] == ["accelssl", "train"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu", "--no-baseline"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    assert "PFLOP" in capsys.readouterr().err
    steps = lines(tmp_path / "run", "step")
    assert [sum(s["p"] == p for s in steps) for p in (48, 40)] == [
        stage["steps"] for stage in plan["stages"]
    ]
    assert plan["units"] == pytest.approx(steps[-1]["spent"])
    assert plan["flops"] == pytest.approx(sum(8 * s["image_flops"] for s in steps))
    assert (
        plan["config"]["head_hidden"]
        == json.loads((tmp_path / "run" / "config.json").read_text())["head_hidden"]
    )


@pytest.mark.usefixtures("known_speed")
def test_hours_and_epochs_become_a_budget_in_the_printed_command(shard_dir: Path) -> None:
    by_hours = facts(asked(shard_dir, hours=0.5))
    assert by_hours["seconds_s"] == pytest.approx(1800, rel=0.01)
    assert f"--budget {by_hours['budget']:.10g} " in by_hours["command"] + " "
    by_epochs = facts(asked(shard_dir, epochs=10, algo="moco"))
    assert by_epochs["budget"] == 10 * 40 * 4
    assert "--budget 1600 " in by_epochs["command"]


@pytest.mark.usefixtures("known_speed")
def test_a_recipe_brings_its_own_budget(shard_dir: Path) -> None:
    plan = facts(Asked(str(shard_dir), recipe="moco_small", options={"batch": 8}))
    assert plan["budget"] == 1e6 and "--recipe moco_small" in plan["command"]
    assert "--budget" not in plan["command"]


@pytest.mark.usefixtures("known_speed")
@pytest.mark.parametrize(
    ("chosen", "where", "named"),
    [
        ({"budget": "2"}, Where("cpu"), "budget of 2"),
        ({"budget": "1k", "hours": 1.0}, Where("cpu"), "--budget and --hours"),
        ({}, Where("cpu"), "No budget"),
        ({"hours": 1e-6}, Where("cpu"), "--hours 1e-06"),
        ({"hours": 0.0}, Where("cpu"), "--hours 0"),
        ({"epochs": -1.0}, Where("cpu"), "--epochs-equivalent -1"),
        ({"budget": "1k", "options": {"batch": "auto"}}, Where("cpu"), "--batch auto"),
        ({"hours": 1.0, "options": {"batch": 64}}, Where("cpu"), "40 training images"),
        ({"budget": "1k"}, Where("cpu", gpus=2), "--gpus 2"),
        ({"budget": "1k"}, Where("cpu", gpus=0), "--gpus 0"),
        ({"budget": "1k", "options": {"batch": 9}}, Where(gpus=2, bench=BENCH), "batch of 9"),
        ({"budget": "1k", "options": {"model": TINY}}, Where(bench=BENCH), "no steps of vit_tiny"),
        ({"budget": "1k"}, Where(bench=Path("missing.json")), "missing.json"),
        ({"budget": "1k", "algo": "byol"}, Where("cpu"), "byol"),
        ({"budget": "1k", "data": "nowhere"}, Where("cpu"), "nowhere"),
    ],
)
def test_an_impossible_plan_is_refused_by_its_value(
    chosen: dict[str, Any], where: Where, named: str, shard_dir: Path
) -> None:
    with pytest.raises(UserError) as refused:
        plan_command(asked(shard_dir, **chosen), where)
    assert named in refused.value.what and refused.value.remedy


@pytest.mark.usefixtures("known_speed")
def test_a_plan_notes_a_schedule_made_for_another_method(shard_dir: Path, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    stages = [{"until": 1.0, "p": 48, "drop": 0.5}]
    schedule.write_text(json.dumps({"method": "moco", "stages": stages}))
    for algo, notes in (("moco", 0), ("simclr", 1)):
        request = asked(shard_dir, algo=algo, budget="20", compression=(None, None, schedule))
        text = plan_command(request, Where("cpu"))
        assert text.count(f"was made for moco, and this run is {algo}") == notes


@pytest.mark.skipif(not BENCH.exists(), reason="needs the checkout")
def test_a_saved_bench_gives_back_the_rates_that_it_measured() -> None:
    """For SimCLR at its batch; half the batch on each of two GPUs at the scaling assumed."""
    rows = {(r["model"], r["p"], r["drop"]): r for r in json.loads(BENCH.read_text())["rows"]}
    model, stages = "vit_base_patch16_224", ((30, 0.5), (16, 0.75))
    schedule = Schedule(
        tuple(Stage((i + 1) / 2, Compression(*stage)) for i, stage in enumerate(stages))
    )
    config = TrainConfig("simclr", model, "", 1e6, schedule)
    with torch.device("meta"):
        shape = ModelShape.of(build(config))
    flops = [step_flops(shape, config, stage) for stage in schedule.stages]
    measured = [rows[model, *stage]["live"]["median_s"] for stage in stages]
    one, two = (bench_speed(BENCH, config, flops, gpus) for gpus in (1, 2))
    assert [stage.step_s for stage in one.stages] == pytest.approx(measured)
    halved = [stage_s / 2 / SCALING for stage_s in measured]
    assert [stage.step_s for stage in two.stages] == pytest.approx(halved)
    assert two.stages[0].loader_images_per_s == 2 * (one.stages[0].loader_images_per_s or 0)
    assert len(one.assumptions) == 1


@pytest.mark.skipif(not BENCH.exists(), reason="needs the checkout")
def test_what_was_not_benched_is_assumed_in_words(shard_dir: Path) -> None:
    request = asked(
        shard_dir,
        algo="dino",
        budget="1k",
        compression=(24, 0.0, None),
        options={"model": "vit_small_patch16_224"},
    )
    text = plan_command(request, Where(gpus=2, bench=BENCH))
    for said in ("dino has the rate", "p24 d0 has the rate", "batches of 4", "2 GPUs", "H100"):
        assert said in text
    assert "torchrun --nproc-per-node 2 -m accelssl train" in text


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"rows": [{}], "sources": [], "environment": {}}',
        '{"rows": [], "sources": [{"source": "loader", "images": 8}], "environment": {}}',
        "no json",
    ],
)
def test_a_file_that_is_no_bench_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    config = TrainConfig("simclr", TINY, "", 1e6, constant(UNCOMPRESSED))
    with pytest.raises(UserError, match=r"bench\.json"):
        bench_speed(path, config, [1], 1)
