import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from accelssl.errors import UserError
from accelssl.train.log import Log
from accelssl.train.watchers import COLLAPSED, progress_bar, tensorboard

SPREAD = torch.tensor(0.625)


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
            log.step(line(step), torch.tensor(float(step)), SPREAD)
    lines = written(tmp_path)
    assert [entry["loss"] for entry in lines] == [1, 2, 3]
    assert {entry["spread"] for entry in lines} == {0.625}
    assert {entry["images_per_s"] for entry in lines} == {16.0}
    assert {entry["units_per_s"] for entry in lines} == {8.0}


def test_events_come_after_the_steps_before_them(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.step(line(1), torch.tensor(1.0), SPREAD)
        log.event("eval", step=1, nn1=50.0)
    assert [entry["kind"] for entry in written(tmp_path)] == ["step", "eval"]


def test_a_line_cut_by_a_kill_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"kind": "step", "st')
    with Log(tmp_path) as log:
        log.step(line(1), torch.tensor(1.0), SPREAD)
    last = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 1


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_written_and_then_an_error(
    tmp_path: Path, loss: float
) -> None:
    with pytest.raises(UserError, match="step 2"), Log(tmp_path) as log:
        log.step(line(1), torch.tensor(1.0), SPREAD)
        log.step(line(2), torch.tensor(loss), SPREAD)
    assert [entry["step"] for entry in written(tmp_path)] == [1, 2]


def test_tensorboard_gets_losses_and_accuracies(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = tensorboard(tmp_path)
    assert watch is not None
    with Log(tmp_path, [watch]) as log:
        log.step(line(1), torch.tensor(2.5), SPREAD)
        log.event("eval", step=1, nn1=40.0, knn20=50.0)
        log.event("end", step=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(s.step, s.value) for s in events.Scalars("loss")] == [(1, 2.5)]
    assert [s.value for s in events.Scalars("nn1")] == [40.0]


def test_the_progress_bar_shows_stage_loss_and_rates(tmp_path: Path) -> None:
    console = Console(record=True, force_terminal=True, width=120)
    with progress_bar(40.0, console) as bar, Log(tmp_path, [bar]) as log:
        log.start_clock(0.0, 0, 0.0)
        log.step(line(5), torch.tensor(1.25), SPREAD)
    shown = console.export_text()
    for part in ("p30 d0.5", "50%", "loss 1.250", "16 images/s", "8 units/s"):
        assert part in shown


def test_a_collapse_is_told_once_with_its_step_and_spread(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    with progress_bar(40.0, console) as bar, Log(tmp_path, [bar]) as log:
        for step, spread in ((1, 0.7), (2, 0.0123), (3, 0.01)):
            log.step(line(step), torch.tensor(1.0), torch.tensor(spread))
    (told,) = [text for text in console.export_text().splitlines() if "collapsed" in text]
    assert told.startswith("Step 2:") and "spread 0.012" in told and "--lr" in told


def test_an_untrained_network_is_not_told_to_have_collapsed(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    with progress_bar(40.0, console) as bar, Log(tmp_path, [bar]) as log:
        log.step(line(1), torch.tensor(1.0), torch.tensor(COLLAPSED))
    assert "collapsed" not in console.export_text()


def test_an_onlooker_that_fails_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    calls = []

    def full_disk(line: dict[str, Any]) -> None:
        calls.append(line)
        raise OSError(28, "No space left on device")

    with Log(tmp_path, [full_disk]) as log:
        log.event("a")
        log.event("b")
    assert len(calls) == 1 and [entry["kind"] for entry in written(tmp_path)] == ["a", "b"]


def test_a_terminal_nobody_reads_falls_silent() -> None:
    code = "from accelssl.train.watchers import Terminal\nt = Terminal()\n"
    code += "for _ in range(9): t.print('x' * 9000)\nprint('went on')"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=writing, stdout=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.stdout == "went on\n"
