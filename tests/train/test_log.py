import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from accelssl.pipeline.compress.compression import Compression
from accelssl.train import log as log_module
from accelssl.train.config import TrainConfig
from accelssl.train.log import Log
from accelssl.train.schedule import constant
from accelssl.train.watchers import COLLAPSED, CollapseNotice, Terminal, progress_bar, tensorboard

NOTED = {"spread": torch.tensor(0.625)}


def losses(*values: float) -> torch.Tensor:
    """Those of the ranks, in one step."""
    return torch.tensor(values)


def line(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "images": 8 * step,
        "spent": 4.0 * step,
        "progress": step / 10,
        "lr": 0.1,
        "p": 30,
        "drop": 0.5,
        "elapsed_s": 0.5 * step,
    }


def written(run: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (run / "log.jsonl").read_text().splitlines()]


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


def test_tensorboard_gets_all_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = tensorboard(tmp_path)
    assert watch is not None
    with Log(tmp_path, [watch]) as log:
        log.step(line(1), losses(2.5), NOTED | {"kl": torch.tensor(0.25)})
        log.event("eval", step=1, nn1=40.0, knn20=50.0)
        log.event("end", step=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(s.step, s.value) for s in events.Scalars("loss")] == [(1, 2.5)]
    assert [s.value for s in events.Scalars("nn1")] == [40.0]
    curves = {"loss", "spread", "kl", "lr", "p", "drop", "spent", "nn1", "knn20"}
    assert set(events.Tags()["scalars"]) == curves | {"images_per_s", "units_per_s"}


def test_a_full_disk_ends_tensorboards_events_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.summary.writer.record_writer import RecordWriter

    seen: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: seen.append(failure.exc_type))
    watch = tensorboard(tmp_path)
    assert watch is not None
    end = {"kind": "end"}
    watch(end)

    def full(writer: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(9):
            watch({"kind": "eval", "step": 1, "nn1": 40.0})
            watch(end)
    assert seen == []
    other = threading.Thread(target=lambda: [][0])
    other.start()
    other.join()
    assert seen == [IndexError]


def test_the_progress_bar_shows_stage_loss_and_rates(tmp_path: Path) -> None:
    console = Console(record=True, force_terminal=True, width=120)
    with progress_bar(40.0, console) as bar, Log(tmp_path, [bar]) as log:
        log.start_clock(0.0, 0, 0.0)
        log.step(line(5), losses(1.25), NOTED)
    shown = console.export_text()
    for part in ("p30 d0.5", "50%", "loss 1.250", "16 images/s", "8 units/s"):
        assert part in shown


def told(tmp_path: Path, noted: Sequence[dict[str, float]], steps: int = 1) -> list[str]:
    """What is said of a DINO run with 64 prototypes; each of `noted` holds for so many steps, of
    1% of the budget each."""
    console = Console(record=True, width=200)
    config = TrainConfig(
        "dino", "vit_tiny_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)), prototypes=64
    )
    with Log(tmp_path, [CollapseNotice(config, console)]) as log:
        for step, values in enumerate((v for v in noted for _ in range(steps)), start=1):
            scalars = {name: torch.tensor(value) for name, value in values.items()}
            log.step(line(step) | {"progress": step / 100}, losses(1.0), scalars)
    return console.export_text().splitlines()


def test_a_collapse_is_told_once_with_its_step_and_spread(tmp_path: Path) -> None:
    (said,) = told(tmp_path, [{"spread": spread} for spread in (0.7, 0.0123, 0.01)])
    assert said.startswith("Step 2:") and "spread 0.012" in said and "--lr" in said
    assert "collapsed" in said


def test_an_untrained_network_is_not_told_to_have_collapsed(tmp_path: Path) -> None:
    assert told(tmp_path, [{"spread": COLLAPSED}]) == []


@pytest.mark.parametrize(
    ("entropy", "finding", "remedy"),
    [
        (0.995 * math.log(64), "equally near", "--teacher-temp"),
        (0.005 * math.log(64), "one prototype and no other", "--lr"),
    ],
)
def test_keys_that_have_long_been_all_alike_are_told_once_with_what_helps(
    tmp_path: Path, entropy: float, finding: str, remedy: str
) -> None:
    healthy, lost = ({"spread": 0.7, "teacher_entropy": e} for e in (2.0, entropy))
    (said,) = told(tmp_path, [healthy, lost], steps=20)
    assert said.startswith("Step 26:") and finding in said and f"{entropy:.2f} of 4.16" in said
    assert remedy in said


def test_keys_that_are_alike_for_a_while_or_nearly_are_not_told(tmp_path: Path) -> None:
    most = math.log(64)
    entropies = (most, 0.985 * most, 0.999 * most, 0.02 * most, 0.0, most)
    assert told(tmp_path, [{"spread": 0.7, "teacher_entropy": e} for e in entropies], steps=5) == []


def test_an_onlooker_that_fails_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    calls = []

    def full_disk(line: dict[str, Any]) -> None:
        calls.append(line)
        raise OSError(28, "No space left on device")

    with Log(tmp_path, [full_disk]) as log:
        log.event("a")
        log.event("b")
    assert len(calls) == 1 and [entry["kind"] for entry in written(tmp_path)] == ["a", "b"]


def test_a_terminal_nobody_reads_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with TextIOWrapper(os.fdopen(writing, "wb", buffering=0), write_through=True) as unread:
        monkeypatch.setattr(sys, "stderr", unread)
        terminal = Terminal()
        for step in range(3):
            terminal.print(f"step {step}")
    assert terminal.quiet


@pytest.mark.parametrize(
    ("units_per_s", "said"), [(20.0, "50 s left"), (0.01, "1 d 4 h left"), (1e-3, "11 d 14 h left")]
)
def test_where_there_is_no_terminal_a_line_says_how_long_it_will_take(
    units_per_s: float,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("accelssl.telling.LINE_EVERY_S", 0.0)
    seen = {"kind": "step", "loss": 2.0, "images_per_s": 8.0, "units_per_s": units_per_s}
    with progress_bar(1004.0, Console(stderr=True, width=200)) as watch:
        watch(line(1) | seen)
    assert said in capsys.readouterr().err
