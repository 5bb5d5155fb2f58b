"""Whole runs of MoCo-v3 on a small set of pictures."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.model.ema import momentum_at
from accelssl.model.moco import MoCo
from accelssl.pipeline.compression import Compression
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config import recipes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.named_recipes import find
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.evaluate.command import evaluate_run
from accelssl.train.loop import train
from accelssl.train.methods import METHODS
from accelssl.train.objective import build
from accelssl.train.report.baseline import measure_baseline
from accelssl.train.report.report import write_report
from accelssl.train.report.sample_crops import save_pictures
from accelssl.train.session import resume, start
from tests import small_vit
from tests.train.checkpoints.stopping import stop_before_step
from tests.train.log.run_log import lines, losses

CPU = torch.device("cpu")
STAGES = Schedule((Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(40, 0.5))))
COSTS = ((3 * 12 + 25) / 196, (3 * 18 + 36) / 196)
STEPS = 10


@pytest.fixture
def config(shard_dir: Path) -> TrainConfig:
    return TrainConfig(
        algo="moco",
        model=small_vit.NAME,
        data=str(shard_dir),
        budget=29.0,
        schedule=STAGES,
        batch=8,
        base_lr=0.01,
        temperature=0.2,
        momentum=0.9,
        head_hidden=32,
        head_out=16,
        seed=5,
    )


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_and_resumed_is_the_uninterrupted_one_to_the_bit(
    config: TrainConfig, tmp_path: Path, symmetric: bool
) -> None:
    config = replace(config, symmetric=symmetric, budget=config.budget * (1 + symmetric))
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert train(start(config, whole, CPU), whole) == 0
    assert list(losses(whole)) == list(range(1, STEPS + 1))
    first = start(config, parted, CPU)
    stop_before_step(first, STEPS // 2 + 1)
    assert train(first, parted) == signal.SIGTERM and first.step == STEPS // 2
    assert train(resume(config, parted, CPU), parted) == 0
    assert losses(parted) == losses(whole)
    ours, theirs = (checkpoint.load(run) for run in (parted, whole))
    assert ours.objective.keys() == theirs.objective.keys()
    for name, value in theirs.objective.items():
        assert torch.equal(ours.objective[name], value), name
    moments, their_moments = ours.optimizer["state"], theirs.optimizer["state"]
    for number, state in their_moments.items():
        assert all(torch.equal(moments[number][name], value) for name, value in state.items())


def test_a_run_spends_what_query_and_key_cost_and_reads_back_as_it_was(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(start(config, run, CPU), run)
    spent = 0.0
    for line in lines(run, "step"):
        cost = COSTS[spent / config.budget >= 0.5]
        assert line["sample_cost"] == pytest.approx(cost)
        spent += 8 * cost
        assert line["spent"] == pytest.approx(spent)
    assert all(0.03 < line["spread"] <= 1 for line in lines(run, "step"))
    assert {line["keep"] for line in lines(run, "step")} == {12, 18}
    assert read_config(run / "config.json") == config


def test_the_key_follows_at_the_momentum_of_the_progress_before_each_step(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    session = start(config, run, CPU)
    assert isinstance(session.objective, MoCo)
    key = session.objective.key
    used, follow = [], key.follow

    def watched(followed: torch.nn.Module) -> None:
        used.append(float(key.share))
        follow(followed)

    key.follow = watched  # type: ignore[method-assign]
    train(session, run)
    before = [0.0, *(line["progress"] for line in lines(run, "step"))][:-1]
    expected = [1 - momentum_at(progress, 0.9) for progress in before]
    assert used == pytest.approx(expected, rel=1e-6)
    assert len(set(used)) == STEPS


def test_a_query_sees_what_is_left_and_a_key_everything(
    config: TrainConfig, tmp_path: Path
) -> None:
    for symmetric, kept in [(False, [12, 25]), (True, [12, 12, 25, 25])]:
        session = start(replace(config, symmetric=symmetric), tmp_path / str(symmetric), CPU)
        batch = session.loader.next(session.config.compressions(STAGES.stages[0]))
        assert [view.keep_idx_NL.shape[1] for view in batch.views] == kept
        assert [view.p for view in batch.views] == [48] * len(kept)
        swaps = [view.swapped is not None for view in session.loader.views]
        assert swaps == [not symmetric] * 2


def test_weight_decay_is_on_all_parameters(config: TrainConfig, tmp_path: Path) -> None:
    session = start(config, tmp_path / "run", CPU)
    groups = session.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.1}
    trained = [p for p in session.objective.parameters() if p.requires_grad]
    assert sum(len(group["params"]) for group in groups) == len(trained)


def test_the_query_encoder_is_what_is_evaluated_and_the_baseline_has_whole_views(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    session = start(replace(config, budget=5.0, base_lr=1.0), run, CPU)
    train(session, run)
    scores = evaluate_run(run, None, CPU, show=False)
    assert scores["trained"] != scores["untrained"] and scores["queries"] == 20
    monkeypatch.setattr("accelssl.train.report.baseline.ENOUGH_S", 0.0)
    measure_baseline(session, run)
    assert "half of MoCo-v3" in write_report(run).read_text()
    (line,) = lines(run, "baseline")
    assert line["sample_cost"] == pytest.approx(4 * 225 / 196)


def test_pictures_show_the_query_dropped_from_and_the_key_whole(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    save_pictures(start(config, run, CPU), run)
    saved = np.load(run / "pictures.npz")
    assert saved["crops"].shape == (2, 8, 240, 240, 3)
    query, key = saved["keep_0"]
    assert ((query >= 0).sum(1) == 12).all() and (key == np.arange(25)).all()


def test_another_symmetry_is_refused_where_an_epoch_goes_on(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    session = start(config, run, CPU)
    stop_before_step(session, 3)
    train(session, run)
    with pytest.raises(UserError, match="symmetric False, now True"):
        resume(replace(config, symmetric=True), run, CPU)


def test_options_of_moco_alone_are_refused_elsewhere(config: TrainConfig) -> None:
    with pytest.raises(UserError, match="--symmetric has no effect with simclr"):
        replace(config, algo="simclr", symmetric=True)
    with pytest.raises(UserError, match=r"--momentum 1\.5"):
        replace(config, momentum=1.5)


def test_the_recipe_is_the_originals() -> None:
    config = recipes.moco(
        "vit_base_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)), batch=1024
    )
    assert config.peak_lr == pytest.approx(6e-4) and config.weight_decay == 0.1
    assert (config.temperature, config.momentum, config.min_area) == (0.2, 0.99, 0.08)
    assert (config.head_hidden, config.head_out, config.symmetric) == (4096, 256, False)
    assert config.warmup == pytest.approx(40 / 300, abs=5e-4) and config.decays_vectors


def test_every_method_has_defaults_and_a_smaller_head_for_few_images() -> None:
    asked: Any = ("vit_tiny_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)))
    for algo in METHODS:
        config = recipes.usual(algo, *asked)
        assert config.algo == algo
        assert find(f"{algo}_small").make("shards").head_hidden < config.head_hidden


def test_the_initial_key_is_the_initial_query(config: TrainConfig) -> None:
    state = build(config).state_dict()
    keys = {name for name in state if name.startswith("key.average.")}
    assert keys
    for name in keys:
        assert torch.equal(state[name], state["query." + name.removeprefix("key.average.")])


def accelssl(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str]:
    """Exit code and stderr of the command, its lines joined."""
    sys.argv = ["accelssl", *words.split()]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    code = stopped.value.code
    err = " ".join(capsys.readouterr().err.split())
    return (code if isinstance(code, int) else 0), err


def test_the_command_trains_resumes_evaluates_and_reports(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tiny = f"--model {small_vit.NAME} --batch 8 --patch 48 --head-hidden 16 --device cpu"
    begin = f"train --data {shard_dir} --out {run} {tiny} --no-baseline --threads 1"
    code, err = accelssl(capsys, f"{begin} --algo moco --symmetric --budget 10")
    assert code == 0 and "symmetric moco" in err, err
    config = read_config(run / "config.json")
    assert (config.algo, config.symmetric, config.temperature) == ("moco", True, 0.2)
    assert lines(run, "step")[0]["sample_cost"] == pytest.approx(2 * (3 * 12 + 25) / 196)
    code, err = accelssl(capsys, f"train --out {run} --resume --device cpu")
    assert code == 0 and "is finished" in err
    code, err = accelssl(capsys, f"train --out {run} --resume --algo simclr --device cpu")
    assert code == 2 and "algo moco, not simclr" in err
    code, err = accelssl(capsys, f"evaluate {run} --device cpu")
    assert code == 0, err
    page = (run / "report.html").read_text()
    assert "MoCo v3" in page and "half of MoCo-v3" not in page
    assert "12 and 25 of 25 kept" not in page and "12 of 25 kept" in page


@pytest.mark.parametrize("option", ["--momentum 0.9", "--symmetric"])
def test_the_command_refuses_options_that_simclr_has_not(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path, option: str
) -> None:
    words = f"train --data {shard_dir} --out {tmp_path / 'run'} --budget 1k {option}"
    code, err = accelssl(capsys, words)
    assert code == 2 and f"{option.split()[0]} has no effect with simclr" in err
    assert not (tmp_path / "run").exists()
