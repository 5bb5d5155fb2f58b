"""What ends a run before its budget is spent: an evaluation, or a batch, that cannot be had."""

from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.errors import UserError
from accelssl.train import loop
from accelssl.train.checkpoints import checkpoint
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.log.run_log import lines


def test_a_network_whose_features_are_lost_ends_the_run_as_a_lost_loss_does(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last good checkpoint stays, and the log has an end: other ranks are told by it."""

    def lost_features(encoder: Any) -> Any:
        return lambda tokens: tokens.values_NLV[:, 0] * float("nan")

    monkeypatch.setattr(loop, "encoder_features", lost_features)
    run = tmp_path / "run"
    session = start(config_on(shard_dir, eval_every=0.5), run, CPU)
    session.save(run)
    with pytest.raises(UserError, match="network 'trained' are not finite"):
        loop.train(session, run)
    assert checkpoint.load(run).step == 0 < session.step
    (end,) = lines(run, "end")
    assert end["reason"] == "failure" and not lines(run, "eval")


def test_an_evaluation_that_does_not_fit_the_memory_ends_a_run_that_is_saved(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(loop, "neighbours_of", no_room)
    run = tmp_path / "run"
    session = start(config_on(shard_dir, eval_every=0.5), run, CPU)
    with pytest.raises(UserError, match="does not fit the memory of cpu") as refused:
        loop.train(session, run)
    assert "--resume --eval-every 0" in refused.value.remedy
    assert checkpoint.load(run).step == session.step == lines(run, "step")[-1]["step"] > 0
    (end,) = lines(run, "end")
    assert end["reason"] == "failure"


def test_any_other_error_of_an_evaluation_stays_one(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Any:
        raise RuntimeError("mat1 and mat2 cannot be multiplied")

    monkeypatch.setattr(loop, "neighbours_of", breaks)
    with pytest.raises(RuntimeError, match="mat1"):
        loop.train(
            start(config_on(shard_dir, eval_every=0.5), tmp_path / "run", CPU), tmp_path / "run"
        )


def test_a_step_has_the_rate_of_what_was_spent_before_it(shard_dir: Path, tmp_path: Path) -> None:
    """Of the share spent: linear from 0 over the warm-up, then (1 - t^2) of the peak."""
    run, warmup = tmp_path / "run", 0.5
    config = config_on(shard_dir, warmup=warmup)
    session = start(config, run, CPU)
    heard: list[float] = []
    session.objective.set_progress = heard.append  # type: ignore[method-assign, assignment]
    loop.train(session, run)
    steps = lines(run, "step")
    before = [0.0, *(line["spent"] / config.budget for line in steps[:-1])]
    expected = [
        share / warmup if share < warmup else 1 - ((share - warmup) / (1 - warmup)) ** 2
        for share in before
    ]
    assert before[2] < warmup < before[-1]
    assert [line["lr"] / config.peak_lr for line in steps] == pytest.approx(expected)
    assert heard[-len(steps) :] == pytest.approx(before)
    for group in session.optimizer.param_groups:
        assert float(group["lr"]) == pytest.approx(steps[-1]["lr"])


@pytest.mark.parametrize("is_finite", [True, False])
def test_where_no_batch_can_be_had_all_that_was_trained_is_saved_and_logged(
    is_finite: bool, shard_dir: Path, tmp_path: Path
) -> None:
    """Weights that were lost are not: the checkpoint is the one before."""
    run = tmp_path / "run"
    session = start(config_on(shard_dir), run, CPU)
    session.save(run)
    original, calls = session.loader.next, 0

    def next_or_fail(*compressions: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise UserError("Sample 7 cannot be read.", "Look at it.")
        if calls == 2 and not is_finite:
            next(session.objective.parameters()).data.fill_(float("nan"))
        return original(*compressions)

    session.loader.next = next_or_fail  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="Sample 7 cannot be read"):
        loop.train(session, run)
    assert [line["step"] for line in lines(run, "step")] == [1, 2]
    assert checkpoint.load(run).step == (2 if is_finite else 0)
