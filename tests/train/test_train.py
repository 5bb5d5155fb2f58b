"""Runs on a small set of pictures: the same loss after a resume, and every kind of interruption."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.shards.shard_set import ShardSet
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.evaluate.command import evaluate_run
from accelssl.train.evaluate.results import read_results
from accelssl.train.loop import step_of, train
from accelssl.train.objective import build
from accelssl.train.report.baseline import measure_baseline
from accelssl.train.report.report import write_report
from accelssl.train.report.sample_crops import save_pictures
from accelssl.train.session import Session, resume, start
from tests import small_vit
from tests.train.checkpoints.stopping import terminate
from tests.train.log.run_log import lines, losses

CPU = torch.device("cpu")
STAGES = Schedule((Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(40, 0.0))))
COSTS = (6 * 12 / 196, 6 * 36 / 196)


@pytest.fixture
def config(shard_dir: Path) -> TrainConfig:
    return config_on(shard_dir)


def config_on(shard_dir: Path) -> TrainConfig:
    return TrainConfig(
        algo="simclr",
        model=small_vit.NAME,
        data=str(shard_dir),
        budget=60.0,
        schedule=STAGES,
        batch=8,
        base_lr=0.01,
        head_hidden=32,
        head_out=16,
        seed=5,
    )


@pytest.fixture(scope="module")
def whole(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(start(config_on(shard_dir), run, CPU), run) == 0
    return run


def train_steps(session: Session, run: Path, count: int) -> None:
    """Train `count` steps and stop as a SIGTERM would."""
    seen = 0

    def watch(line: dict[str, Any]) -> None:
        nonlocal seen
        seen += line["kind"] == "step"

    original = session.loader.next
    calls = 0

    def next_and_stop(*compressions: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            terminate()
        return original(*compressions)

    session.loader.next = next_and_stop  # type: ignore[method-assign, assignment]
    assert train(session, run, [watch]) == signal.SIGTERM
    assert seen == count


def test_a_run_spends_its_budget_stage_by_stage(config: TrainConfig, whole: Path) -> None:
    steps = lines(whole, "step")
    spent = 0.0
    for i, line in enumerate(steps):
        cost = COSTS[0] if spent / 60 < 0.5 else COSTS[1]
        assert line["sample_cost"] == pytest.approx(cost)
        spent += 8 * cost
        assert line["spent"] == pytest.approx(spent) and line["images"] == 8 * (i + 1)
    assert steps[-2]["spent"] < 60 <= steps[-1]["spent"]
    assert [steps[0]["p"], steps[-1]["p"]] == [48, 40]
    assert lines(whole, "end")[0]["reason"] == "budget"
    assert read_config(whole / "config.json") == config


def test_steps_on_one_batch_learn_to_tell_its_pairs(config: TrainConfig, tmp_path: Path) -> None:
    session = start(config, tmp_path / "run", CPU)
    batch = session.loader.next((Compression(48, 0.5),) * 2)
    step = step_of(session)
    values = [step(batch, 5e-4).item() for _ in range(15)]
    assert values[-1] < 0.25 * values[0]


@pytest.mark.parametrize(
    "stop_after", [11, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 12))]
)
def test_a_resumed_run_continues_to_identical_losses(
    config: TrainConfig, whole: Path, tmp_path: Path, stop_after: int
) -> None:
    """At, before and after the change of stage; epochs of five batches end in between."""
    parted = tmp_path / "parted"
    train_steps(start(config, parted, CPU), parted, stop_after)
    assert len(losses(parted)) == stop_after
    assert train(resume(config, parted, CPU), parted) == 0
    assert losses(parted) == losses(whole)
    assert lines(parted, "end")[-1]["spent"] == lines(whole, "end")[-1]["spent"]


def test_a_run_without_a_checkpoint_resumes_from_its_start(
    config: TrainConfig, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start(config, run, CPU)
    train(resume(config, run, CPU), run)
    assert losses(run) == losses(whole)


def test_resuming_on_another_shard_set_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_steps(start(config, run, CPU), run, 2)
    state = checkpoint.load(run)
    checkpoint.save(run, replace(state, digest="0" * 64))
    with pytest.raises(UserError, match="not the shard set"):
        resume(config, run, CPU)


def test_a_folder_that_holds_a_run_is_not_overwritten(config: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(config, run, CPU)
    with pytest.raises(UserError, match="--resume"):
        start(config, run, CPU)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path\n"
    code += "from accelssl.train.checkpoints.lock import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): print('held')"
    other = [sys.executable, "-c", code, str(tmp_path)]
    with exclusive(tmp_path):
        second = subprocess.run(other, capture_output=True, text=True)
        assert "Another process is training" in second.stderr
    assert subprocess.run(other, capture_output=True, text=True).stdout == "held\n"


def test_a_start_that_is_refused_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    with exclusive(tmp_path):
        (tmp_path / "ours").write_text("")
    assert (tmp_path / "lock").exists()


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train_steps(start(config, run, CPU), run, 2)
    before = (run / checkpoint.NAME).read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        checkpoint.save(run, checkpoint.load(run))
    assert (run / checkpoint.NAME).read_bytes() == before
    assert not list(run.glob("*.part"))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_steps(start(config, run, CPU), run, 2)
    session = resume(config, run, CPU)
    session.objective.state_dict()["head.layers.0.weight"][0, 0] = float("nan")
    with pytest.raises(UserError) as raised:
        train(session, run)
    assert raised.value.what.startswith("The loss of step 3 is nan (p48 d0.5, learning rate 0.0")
    remedy = f"try again with --resume from {run / checkpoint.NAME}, which is of step 2."
    assert "lower --lr" in raised.value.remedy and remedy in raised.value.remedy
    assert checkpoint.load(run).step == 2
    assert lines(run, "end")[-1]["reason"] == "failure"
    assert train(resume(config, run, CPU), run) == 0


def test_a_rate_that_is_far_too_high_stops_with_a_loadable_checkpoint(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32 overflows some steps on; checkpoints are written after every step until then."""
    monkeypatch.setattr("accelssl.train.loop.CHECKPOINT_S", 0.0)
    run = tmp_path / "run"
    session = start(replace(config, base_lr=1e19, warmup=0.0), run, CPU)
    with pytest.raises(UserError, match=r"is (nan|inf|finite)"):
        train(session, run)
    state = checkpoint.load(run)
    assert all(value.isfinite().all() for value in state.objective.values())


def test_weights_that_a_step_with_a_good_loss_has_lost_are_not_saved(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular checkpoint comes before the next loss."""
    run = tmp_path / "run"
    train_steps(start(config, run, CPU), run, 2)
    session = resume(config, run, CPU)
    optimizer_step = session.optimizer.step

    def spoil(*_: Any) -> None:
        optimizer_step()
        session.objective.state_dict()["head.layers.0.weight"][0, 0] = float("nan")

    monkeypatch.setattr(session.optimizer, "step", spoil)
    monkeypatch.setattr("accelssl.train.loop.CHECKPOINT_S", 0.0)
    with pytest.raises(UserError, match=r"After step 3 .*head.layers.0.weight .*of step 2\."):
        train(session, run)
    assert np.isfinite(losses(run)[3]) and checkpoint.load(run).step == 2


def test_pixels_that_are_not_numbers_stop_the_run_at_their_step(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    session = start(config, run, CPU)
    original, calls = session.loader.next, 0

    def spoil_the_third(*compressions: Any) -> Any:
        nonlocal calls
        calls += 1
        batch = original(*compressions)
        if calls == 3:
            batch.views[0].values_NLV[0, 0, 0] = float("nan")
        return batch

    session.loader.next = spoil_the_third  # type: ignore[method-assign, assignment]
    session.save(run)
    with pytest.raises(UserError, match=r"loss of step 3 is nan .*of step 0\."):
        train(session, run)


def test_evaluations_come_at_their_share_of_the_budget(config: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(start(replace(config, budget=20.0, eval_every=0.5), run, CPU), run)
    progress = [line["progress"] for line in lines(run, "eval")]
    assert len(progress) == 2 and 0.5 <= progress[0] < 0.7 and progress[1] == 1
    assert all(0 <= line["nn1"] <= 100 for line in lines(run, "eval"))


def test_evaluation_compares_trained_untrained_and_pixels(
    config: TrainConfig, shard_set: ShardSet, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_steps(start(config, run, CPU), run, 2)
    scores = evaluate_run(run, None, CPU, show=False)
    assert (scores["bank"], scores["queries"]) == (40, 20)
    assert read_results(run) == [scores]
    assert scores["pixels"]["nn1"] > 50  # the classes differ in colour


def test_the_initial_network_depends_on_the_seed_alone(config: TrainConfig) -> None:
    first, again = build(config).state_dict(), build(config).state_dict()
    torch.manual_seed(99)
    other = build(replace(config, seed=6)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.layers.0.weight"], other["head.layers.0.weight"])


def test_the_baseline_is_measured_uncompressed(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    session = start(replace(config, budget=10.0), run, CPU)
    train(session, run)
    monkeypatch.setattr("accelssl.train.report.baseline.ENOUGH_S", 0.0)
    measure_baseline(session, run)
    (line,) = lines(run, "baseline")
    assert line["images_per_s"] > 0
    assert line["sample_cost"] == pytest.approx(6 * 225 / 196)


def test_a_baseline_that_does_not_fit_the_memory_is_left_out(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that came as another error, as from a graph that was being captured."""

    def no_room(*_: Any) -> Any:
        try:
            raise torch.OutOfMemoryError("no block")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    def breaks(*_: Any) -> Any:
        raise RuntimeError("mat1 and mat2 cannot be multiplied")

    run = tmp_path / "run"
    session = start(config, run, CPU)
    monkeypatch.setattr("accelssl.train.report.baseline._rate", no_room)
    measure_baseline(session, run)
    assert not (run / "log.jsonl").exists()
    monkeypatch.setattr("accelssl.train.report.baseline._rate", breaks)
    with pytest.raises(RuntimeError, match="mat1"):
        measure_baseline(session, run)


def test_the_pictures_for_the_report_are_saved_for_every_stage(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    save_pictures(start(config, run, CPU), run)
    saved = np.load(run / "pictures.npz")
    assert saved["crops"].shape == (2, 8, 240, 240, 3)
    assert saved["p"].tolist() == [48, 40]
    assert saved["keep_0"].shape == (2, 8, 12) and saved["keep_1"].shape == (2, 8, 36)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_stopped_can_be_resumed(
    shard_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "accelssl", "train", "--out", str(run), "--device", "cpu"]
    fresh = f"--data {shard_dir} --budget 20k --model vit_tiny_patch16_224 --batch 8 --patch 48"
    process = subprocess.Popen(
        [*command, *fresh.split(), "--head-hidden", "32"], stderr=subprocess.PIPE, text=True
    )
    log = run / "log.jsonl"
    for _ in range(600):
        if log.exists() and len(log.read_text().splitlines()) > 3:
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    if number is not signal.SIGKILL:
        assert process.returncode == 128 + number
        assert f"--out {run} --resume" in errors
        assert checkpoint.load(run).step >= 3
    with exclusive(run):
        session = resume(read_config(run / "config.json"), run, CPU)
        assert session.step == checkpoint.load(run).step
        assert len(session.loader.next((Compression(48, 0.0),) * 2).samples_N) == 8


def test_evaluations_without_validation_pictures_are_refused_before_the_first_step(
    config: TrainConfig, shard_dir: Path, tmp_path: Path
) -> None:
    pictures = tmp_path / "pictures"
    shutil.copytree(shard_dir.parent / "pictures" / "train", pictures / "train")
    shard_images(pictures, tmp_path / "shards", workers=1)
    alone = replace(config, data=str(tmp_path / "shards"), eval_every=0.5)
    with pytest.raises(UserError, match="no val split"):
        start(alone, tmp_path / "run", CPU)


def test_a_crop_without_a_grid_of_16_pixels_has_no_baseline(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    odd = replace(config, size=120, schedule=constant(Compression(30, 0.0)), budget=10.0)
    session = start(odd, run, CPU)
    train(session, run)
    measure_baseline(session, run)
    assert lines(run, "baseline") == []
    assert "not measured" in write_report(run).read_text()
