"""The log of a run: what is written, when, and what is left of it after a failure."""

import json
from pathlib import Path

import pytest
import torch

from accelssl.train.log import log as log_module
from accelssl.train.log.log import Log
from tests.train.log.step_lines import NOTED, line, losses, written


def test_every_step_is_a_line_with_its_loss_and_the_rate_since_the_last_flush(
    tmp_path: Path,
) -> None:
    with Log(tmp_path) as log:
        log.start_clock(0.0, 0, 0.0)
        for step in (1, 2, 3):
            log.step(line(step), losses(float(step)), NOTED)
    lines = written(tmp_path)
    assert [entry["loss"] for entry in lines] == [1, 2, 3]
    assert {entry["spread"] for entry in lines} == {0.625}
    assert {entry["images_per_s"] for entry in lines} == {16.0}
    assert {entry["units_per_s"] for entry in lines} == {8.0}


def test_events_come_after_the_steps_before_them(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.step(line(1), losses(1.0), NOTED)
        log.event("eval", step=1, nn1=50.0)
    assert [entry["kind"] for entry in written(tmp_path)] == ["step", "eval"]


def test_a_step_that_a_gpu_has_not_done_is_written_when_it_is_done_or_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[int] = set()
    waited: list[int] = []
    monkeypatch.setattr(log_module, "FLUSH_S", 0.0)
    there = property(lambda step: step.line["step"] in done)
    monkeypatch.setattr(log_module._Step, "is_there", there)
    monkeypatch.setattr(log_module._Step, "wait", lambda step: waited.append(step.line["step"]))
    with Log(tmp_path) as log:
        log.start_clock(0.0, 0, 0.0)
        for step, has_done, expected in [(1, {}, []), (2, {1}, [1]), (3, {1, 3}, [1])]:
            done.update(has_done)
            log.step(line(step), losses(float(step)), NOTED)
            assert [entry["step"] for entry in written(tmp_path)] == expected
        assert not waited
        log.event("eval", step=3)
        assert waited == [3]
    lines = written(tmp_path)
    assert [(entry["kind"], entry["step"]) for entry in lines] == [
        *(("step", step) for step in (1, 2, 3)),
        ("eval", 3),
    ]
    assert {entry["images_per_s"] for entry in lines[:3]} == {16.0}


def test_an_error_takes_no_line_of_a_step_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not there yet is not waited for: the GPU may be what has failed."""
    there = property(lambda step: step.line["step"] < 3)
    monkeypatch.setattr(log_module._Step, "is_there", there)
    monkeypatch.setattr(log_module._Step, "wait", lambda step: pytest.fail("waits"))
    with pytest.raises(ZeroDivisionError), Log(tmp_path) as log:
        for step in (1, 2, 3):
            log.step(line(step), losses(float(step)), NOTED)
        assert not written(tmp_path)
        raise ZeroDivisionError
    assert [entry["loss"] for entry in written(tmp_path)] == [1.0, 2.0]


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for_until_the_log_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FLUSH_S", 0.0)
    # Made before: a kernel's code is loaded at its first use, for which the GPU is waited for.
    losses_R = [torch.full((1,), float(step), device="cuda") for step in (1, 2, 3)]
    spreads = [torch.full((), float(step), device="cuda") for step in (1, 2, 3)]
    with Log(tmp_path) as log:
        log.step(line(1), losses_R[0], {"spread": spreads[0]})
        log.flush()
        for step in (2, 3):
            torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]
            log.step(line(step), losses_R[step - 1], {"spread": spreads[step - 1]})
        assert not torch.cuda.current_stream().query()
        assert len(written(tmp_path)) == 1
        log.flush()
        assert [entry["loss"] for entry in written(tmp_path)] == [1.0, 2.0, 3.0]
        assert [entry["spread"] for entry in written(tmp_path)] == [1.0, 2.0, 3.0]


def test_a_line_cut_by_a_kill_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"kind": "step", "st')
    with Log(tmp_path) as log:
        log.step(line(1), losses(1.0), NOTED)
    last = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 1


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("of_ranks", "where"),
    [(1, ""), (2, " on rank 1 of 2"), (4, " on ranks 1, 3 of 4")],
)
def test_the_first_loss_that_is_not_finite_is_written_and_told(
    tmp_path: Path, loss: float, of_ranks: int, where: str
) -> None:
    lost = [loss if rank % 2 else 1.0 for rank in range(of_ranks)] if of_ranks > 1 else [loss]
    with Log(tmp_path) as log:
        log.step(line(1), losses(*[1.0] * of_ranks), NOTED)
        log.flush()
        assert log.failure is None
        log.step(line(2), losses(*lost), NOTED)
        log.step(line(3), losses(*[loss] * of_ranks), NOTED)
    assert [entry["step"] for entry in written(tmp_path)] == [1, 2, 3]
    said = f"The loss of step 2 is {loss}{where} (p30 d0.5, learning rate 0.1)."
    assert log.failure is not None and log.failure.what == said


def test_the_loss_of_a_step_is_the_mean_of_its_ranks(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.step(line(1), losses(1.0, 2.0, 6.0), NOTED)
    assert written(tmp_path)[0]["loss"] == 3.0


def test_all_that_was_noted_of_a_step_is_in_its_line(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for step in (1, 2):
            noted = {"spread": torch.tensor(step / 4), "teacher_entropy": torch.tensor(2.0 + step)}
            log.step(line(step), losses(1.0, 1.0), noted)
    assert [(entry["spread"], entry["teacher_entropy"]) for entry in written(tmp_path)] == [
        (0.25, 3.0),
        (0.5, 4.0),
    ]
