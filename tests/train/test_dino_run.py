"""Whole runs of DINO on a small set of pictures."""

import math
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.model.dino import DINO
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Batch, Tokens
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config import recipes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.evaluate.command import evaluate_run
from accelssl.train.loop import step_of, train
from accelssl.train.objective import build
from accelssl.train.optim.adamw import adamw
from accelssl.train.report.sample_crops import save_pictures
from accelssl.train.session import resume, start
from accelssl.train.step import Step
from tests import small_vit
from tests.train.checkpoints.stopping import stop_before_step
from tests.train.log.run_log import lines, losses

CPU = torch.device("cpu")
STAGES = Schedule((Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(40, 0.5))))
SMALL_CROP = 4  # tokens of 32 px
# Query of 12 or 18 tokens, key of 25 or 36, two small crops.
COSTS = ((3 * 12 + 3 * 2 * SMALL_CROP + 25) / 196, (3 * 18 + 3 * 2 * SMALL_CROP + 36) / 196)
STEPS = 10


@pytest.fixture
def config(shard_dir: Path) -> TrainConfig:
    return TrainConfig(
        algo="dino",
        model=small_vit.NAME,
        data=str(shard_dir),
        budget=38.0,
        schedule=STAGES,
        batch=8,
        base_lr=0.03,
        weight_decay=0.04,
        final_weight_decay=0.4,
        clip=0.3,
        momentum=0.9,
        head_hidden=32,
        head_out=16,
        prototypes=48,
        n_local=2,
        local_size=32,
        frozen_last=0.25,
        teacher_warmup=0.5,
        drop_path=0.3,
        seed=5,
    )


def official(config: TrainConfig) -> TrainConfig:
    return replace(config, mode="official", budget=66.0)


@pytest.mark.parametrize(
    ("mode", "stopped_before"),
    [("paper", 2), pytest.param("official", 6, marks=pytest.mark.slow)],
)
def test_a_run_that_was_stopped_and_resumed_is_the_uninterrupted_one_to_the_bit(
    config: TrainConfig, tmp_path: Path, mode: str, stopped_before: int
) -> None:
    """With stochastic depth; stopped while the prototypes keep still, and later."""
    config = official(config) if mode == "official" else config
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert train(start(config, whole, CPU), whole) == 0
    assert list(losses(whole)) == list(range(1, STEPS + 1))
    first = start(config, parted, CPU)
    stop_before_step(first, stopped_before)
    assert train(first, parted) == signal.SIGTERM and first.step == stopped_before - 1
    torch.rand(7)  # what else a process draws makes no difference
    assert train(resume(config, parted, CPU), parted) == 0
    assert losses(parted) == losses(whole)
    ours, theirs = (checkpoint.load(run) for run in (parted, whole))
    assert ours.objective.keys() == theirs.objective.keys()
    for name, value in theirs.objective.items():
        assert torch.equal(ours.objective[name], value), name
    moments = ours.optimizer["state"]
    assert moments.keys() == theirs.optimizer["state"].keys()
    for number, state in theirs.optimizer["state"].items():
        assert all(torch.equal(moments[number][name], value) for name, value in state.items())


def test_stochastic_depth_is_another_in_every_step_and_for_every_seed(
    config: TrainConfig, tmp_path: Path
) -> None:
    config = replace(config, drop_path=0.9)
    found = []
    for seed in (0, 1):
        session = start(config, tmp_path / str(seed), CPU)
        session.config = replace(config, seed=seed)
        step, batch = step_of(session), session.loader.next(config.compressions(STAGES.stages[0]))
        found += [float(step(batch, 0.0)) for _ in range(2)]
    assert len(set(found)) == 4


def test_a_run_spends_what_its_views_cost_and_reads_back_as_it_was(
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
        assert 0 < line["teacher_entropy"] <= math.log(48) + 1e-5 and line["kl"] > 0
    assert read_config(run / "config.json") == config


def test_the_first_prototypes_move_when_their_share_of_the_budget_is_spent(
    config: TrainConfig, tmp_path: Path
) -> None:
    name = "query.head.prototypes.parametrizations.weight.original1"
    initial = build(config).state_dict()
    for stopped_before, moves in ((3, False), (6, True)):
        run = tmp_path / str(stopped_before)
        session = start(config, run, CPU)
        stop_before_step(session, stopped_before)
        train(session, run)
        state = checkpoint.load(run).objective
        assert torch.equal(state[name], initial[name]) is not moves
        other = "query.head.layers.0.weight"
        assert not torch.equal(state[other], initial[other])


def test_what_is_evaluated_is_the_key_with_the_last_update_in_it(
    config: TrainConfig, tmp_path: Path
) -> None:
    """With a momentum of 0, the key is what the query has become."""
    run = tmp_path / "run"
    session = start(replace(config, momentum=0.0), run, CPU)
    assert isinstance(session.objective, DINO)
    batch = session.loader.next(session.config.compressions(STAGES.stages[0]))
    step_of(session)(batch, 0.3, 0.0)
    query = session.objective.query.encoder.state_dict()
    for name, value in session.objective.evaluated.state_dict().items():
        torch.testing.assert_close(value, query[name], rtol=1e-6, atol=1e-8)
    session.save(run)
    scores = evaluate_run(run, None, CPU, show=False)
    assert scores["trained"] != scores["untrained"] and scores["queries"] == 20


@pytest.mark.parametrize(
    ("mode", "kept", "sides"),
    [
        ("paper", [12, 25, 4, 4], [48, 48, 16, 16]),
        ("official", [12, 12, 4, 4, 25, 25], [48, 48, 16, 16, 48, 48]),
    ],
)
def test_queries_see_what_is_left_keys_and_small_crops_everything(
    config: TrainConfig, tmp_path: Path, mode: str, kept: list[int], sides: list[int]
) -> None:
    session = start(replace(config, mode=mode), tmp_path / "run", CPU)
    batch = session.loader.next(session.config.compressions(STAGES.stages[0]))
    assert [view.keep_idx_NL.shape[1] for view in batch.views] == kept
    assert [view.p for view in batch.views] == sides
    assert [view.grid for view in batch.views] == [5 if side == 48 else 2 for side in sides]
    swaps = [view.swapped is not None for view in session.loader.views]
    assert swaps == [mode == "paper"] * 2 + [False] * 2
    if mode == "official":  # the keys are the queries' own crops
        for query, key in zip(batch.views[:2], batch.views[-2:], strict=True):
            rows = torch.arange(8)[:, None]
            assert torch.equal(key.values_NLV[rows, query.keep_idx_NL], query.values_NLV)


@pytest.mark.parametrize("mode", ["paper", "official"])
def test_pictures_show_the_large_crops(config: TrainConfig, tmp_path: Path, mode: str) -> None:
    run = tmp_path / "run"
    save_pictures(start(replace(config, mode=mode), run, CPU), run)
    saved = np.load(run / "pictures.npz")
    assert saved["crops"].shape == (2, 8, 240, 240, 3)
    query, second = saved["keep_0"]
    assert ((query >= 0).sum(1) == 12).all()
    assert ((second >= 0).sum(1) == (25 if mode == "paper" else 12)).all()


def synthetic(step: int, mode: str, images: int = 24) -> Batch:
    """Views of one of 64 patterns each, with noise of their own."""
    drawn = torch.Generator().manual_seed(step)
    patterns = torch.randn(64, 1, 768, generator=torch.Generator().manual_seed(99))
    pictures = patterns[torch.randint(0, 64, (images,), generator=drawn)]

    def view(keep: int, p: int, grid: int) -> Tokens:
        values = pictures + 0.5 * torch.randn(images, keep, 768, generator=drawn)
        keep_idx = torch.rand(images, grid**2, generator=drawn).argsort(1)[:, :keep]
        return Tokens(values, keep_idx, p, grid)

    small = [view(4, 16, 2), view(4, 16, 2)]
    if mode == "paper":
        views = [view(12, 48, 5), view(25, 48, 5), *small]
    else:
        views = [view(12, 48, 5), view(12, 48, 5), *small, view(25, 48, 5), view(25, 48, 5)]
    return Batch(tuple(views), np.arange(images), 0)


@pytest.mark.parametrize("mode", ["paper", "official"])
def test_queries_learn_what_keys_find_and_nothing_collapses(mode: str) -> None:
    torch.manual_seed(0)
    dino = DINO(
        small_vit.NAME,
        mode=mode,
        momentum=0.99,
        teacher_temp=(0.04, 0.04),
        head_hidden=64,
        head_out=32,
        prototypes=64,
    )
    optimizer = adamw(dino, 0.04, final_weight_decay=0.4, clip=3.0)
    step, steps = Step(dino, optimizer, "fp32"), 40
    found, apart = [], []
    for i in range(steps):
        rate = 2e-3 * min(1.0, (i + 1) / 10)
        found.append(float(step(synthetic(i, mode), rate, i / steps)))
        apart.append(float(step.noted["kl"]))
    assert np.mean(found[-5:]) < 0.6 * np.mean(found[:5])
    assert np.mean(apart[-5:]) < 0.6 * np.mean(apart[:5])
    assert float(step.spread) > 0.8 and float(step.noted["teacher_entropy"]) < 0.9 * math.log(64)


def test_the_optimizer_is_the_originals(config: TrainConfig, tmp_path: Path) -> None:
    """Biases and other vectors are not decayed; the CLS token and the positions are."""
    session = start(config, tmp_path / "run", CPU)
    decayed = {id(p) for p in session.optimizer.param_groups[0]["params"]}
    for name, parameter in session.objective.named_parameters():
        expected = parameter.requires_grad and parameter.ndim > 1 and not name.endswith(".bias")
        assert (id(parameter) in decayed) == expected, name
    vit = session.objective.get_submodule("query.encoder.vit")
    assert {id(vit.cls_token), id(vit.pos_embed)} <= decayed


def test_the_recipe_is_the_originals() -> None:
    stages = constant(Compression(30, 0.5))
    config = recipes.dino("vit_base_patch16_224", "shards", 1e6, stages, batch=1024)
    assert config.peak_lr == pytest.approx(3e-3)
    assert (config.weight_decay, config.final_weight_decay, config.clip) == (0.04, 0.4, 0.3)
    assert (config.temperature, config.momentum, config.drop_path) == (0.1, 0.996, 0.1)
    assert (config.teacher_temp_start, config.teacher_temp) == (0.04, 0.07)
    assert config.teacher_warmup == 50 / 400 and config.frozen_last == 3 / 400
    assert config.warmup == 10 / 400 and not config.decays_vectors
    assert (config.head_hidden, config.head_out, config.prototypes) == (2048, 256, 65536)
    assert (config.mode, config.n_local, config.local_size) == ("paper", 6, 96)
    assert (config.min_area, config.local_min_area, config.local_max_area) == (0.25, 0.05, 0.25)
    whole = recipes.dino("vit_base_patch16_224", "shards", 1e6, stages, mode="official")
    assert whole.n_local == 10
    alone = recipes.dino("vit_base_patch16_224", "shards", 1e6, stages, n_local=0)
    assert alone.min_area == 0.14 and len(alone.compressions(stages.stages[0])) == 2


def test_settings_that_make_no_sense_are_refused_by_name(config: TrainConfig) -> None:
    for change, message in [
        ({"mode": "own"}, "--mode 'own'"),
        ({"n_local": -1}, "--local-crops -1"),
        ({"local_size": 40}, "local_size 40"),
        ({"local_size": 240}, "not larger than DINO's small crops of 240 px"),
        ({"local_max_area": 0.01}, r"local_max_area 0\.01"),
        ({"prototypes": 15}, "--prototypes 15"),
        ({"teacher_temp": 0.0}, "--teacher-temp 0"),
        ({"teacher_temp": math.inf}, "--teacher-temp inf.* finite"),
        ({"teacher_temp_start": 1e-30}, "teacher_temp_start 1e-30"),
        ({"temperature": 1e-30}, r"--temperature 1e-30.* 0\.001 to 100"),
        ({"weight_decay": math.inf}, "--weight-decay inf.* finite"),
        ({"clip": math.nan}, "^clip nan"),
        ({"momentum": 2.0}, r"--momentum 2 .* best 0\.996"),
        ({"frozen_last": 1.5}, r"frozen_last 1\.5"),
        ({"drop_path": 1.0}, "drop_path 1"),
        ({"clip": -1.0}, "^clip -1"),
        ({"final_weight_decay": -1.0}, "final_weight_decay -1"),
        ({"algo": "moco"}, "--local-crops, --mode and drop_path have no effect with moco"),
    ]:
        with pytest.raises(UserError, match=message):
            replace(config, **change)  # type: ignore[arg-type]


def test_another_number_of_small_crops_is_refused_on_resume(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    session = start(config, run, CPU)
    stop_before_step(session, 3)
    train(session, run)
    with pytest.raises(UserError, match="n_local 2, now 1"):
        resume(replace(config, n_local=1), run, CPU)


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
    tiny = f"--model {small_vit.NAME} --batch 8 --patch 48 --head-hidden 16 --prototypes 32"
    begin = f"train --data {shard_dir} --out {run} {tiny} --device cpu --no-baseline --threads 1"
    words = f"{begin} --algo dino --mode official --local-crops 1 --teacher-temp 0.05 --budget 25"
    code, err = accelssl(capsys, words)
    assert code == 0 and f"official mode of dino with 1 small crop, {small_vit.NAME}" in err, err
    config = read_config(run / "config.json")
    assert (config.mode, config.n_local, config.prototypes) == ("official", 1, 32)
    cost = (2 * (3 * 12 + 25) + 3 * 36) / 196
    assert lines(run, "step")[0]["sample_cost"] == pytest.approx(cost)
    code, err = accelssl(capsys, f"train --out {run} --resume --device cpu")
    assert code == 0 and "is finished" in err
    code, err = accelssl(capsys, f"evaluate {run} --device cpu")
    assert code == 0, err
    assert "DINO" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    "option", ["--mode official", "--local-crops 2", "--prototypes 9", "--teacher-temp 0.1"]
)
def test_the_command_refuses_options_that_moco_has_not(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path, option: str
) -> None:
    words = f"train --algo moco --data {shard_dir} --out {tmp_path / 'run'} --budget 1k {option}"
    code, err = accelssl(capsys, words)
    assert code == 2 and f"{option.split()[0]} has no effect with moco" in err
    assert not (tmp_path / "run").exists()
