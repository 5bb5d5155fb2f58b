"""What long commands say while they work, where nobody looks on."""

import time
from itertools import islice

import pytest

from accelssl import progress_lines
from accelssl.progress_lines import told


def test_a_line_now_and_then_says_what_is_being_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "LINE_EVERY_S", 0.05)
    with progress_lines.telling() as tell:
        tell("the first")
        tell("the second")
        said = ""
        while "second" not in said:
            said += capsys.readouterr().err
            time.sleep(0.01)
    assert "the second (0 s so far)" in said and "first" not in said
    time.sleep(0.2)
    capsys.readouterr()
    time.sleep(0.2)
    assert not capsys.readouterr().err  # over


def test_what_is_taken_one_by_one_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    taken = told(range(1200), "features", 1200)
    for _ in islice(taken, 301):
        now_s += 0.125
    assert capsys.readouterr().err == "features: 240 of 1,200, 120 s left\n"
    assert list(told("abc", "letters", 3, shown=False)) == ["a", "b", "c"]
    assert not capsys.readouterr().err
