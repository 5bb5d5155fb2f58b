"""An analysis of gradients that was written before is drawn, and gives the same schedule."""

import json
import shutil
from pathlib import Path

import pytest

from tests.golden.entry import CHANGED, DATA, accelssl, read_schedule


def test_an_analysis_gives_the_same_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "camse.json", "camse.json")
    assert accelssl("schedule", "camse.json", "--budget", "1M") == 0
    found = json.loads(Path("schedule.json").read_text())
    pinned = json.loads((DATA / "schedule.json").read_text())
    assert found == pinned, CHANGED.format("The schedule of an analysis")


def test_an_analysis_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "camse.json", "camse.json")
    assert accelssl("plot", "camse.json") == 0, CHANGED.format("The reading of an analysis")
    assert Path("camse.png").exists() and Path("camse.html").exists()


def test_a_schedule_is_read() -> None:
    stages = json.loads((DATA / "schedule.json").read_text())["stages"]
    found = read_schedule(DATA / "schedule.json").to_json()
    assert found == stages, CHANGED.format("The reading of a schedule")
