"""Who watches the lines of a log: TensorBoard, the progress bar, notices on the terminal."""

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

from accelssl.pipeline.compression import Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import constant
from accelssl.train.log.log import Log
from accelssl.train.log.progress import (
    COLLAPSED,
    CollapseNotice,
    Terminal,
    progress_bar,
    tensorboard,
)
from tests.train.log.step_lines import NOTED, line, losses, written


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
    monkeypatch.setattr("accelssl.progress_lines.LINE_EVERY_S", 0.0)
    seen = {"kind": "step", "loss": 2.0, "images_per_s": 8.0, "units_per_s": units_per_s}
    with progress_bar(1004.0, Console(stderr=True, width=200)) as watch:
        watch(line(1) | seen)
    assert said in capsys.readouterr().err
