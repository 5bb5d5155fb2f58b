"""The guard that says when a stage waits for its data."""

from collections.abc import Iterator

import pytest

from accelssl.pipeline.compress.compression import Compression
from accelssl.train import loader_guard
from accelssl.train.loader_guard import SKIPPED_STEPS, WATCHED_STEPS, LoaderGuard
from accelssl.train.schedule import Stage

LIGHT, FULL = Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(16, 0.0))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(loader_guard, "time", clock)
    yield clock


def findings(
    clock: Clock, guard: LoaderGuard, stage: Stage, steps: int, wait_s: float
) -> list[dict[str, float]]:
    """Steps of 100 ms, the waiting included."""
    found = []
    for _ in range(steps):
        with guard.waiting():
            clock.now += wait_s
        clock.now += 0.1 - wait_s
        found.append(guard.finding(stage))
    return [line for line in found if line]


def test_a_stage_that_waits_is_named_once_with_its_figures(clock: Clock) -> None:
    (line,) = findings(clock, LoaderGuard(512), LIGHT, 500, wait_s=0.02)
    assert line == {"p": 48, "drop": 0.5, "waited": 0.2, "images_per_s": 5120.0}


def test_a_stage_that_does_not_wait_is_not_named(clock: Clock) -> None:
    assert not findings(clock, LoaderGuard(512), LIGHT, 500, wait_s=0.002)


def test_each_stage_is_looked_at_by_itself(clock: Clock) -> None:
    guard = LoaderGuard(512)
    assert findings(clock, guard, LIGHT, 200, wait_s=0.01)
    assert not findings(clock, guard, FULL, 200, wait_s=0.001)


def test_the_first_steps_of_a_stage_may_wait(clock: Clock) -> None:
    guard = LoaderGuard(512)
    assert not findings(clock, guard, LIGHT, SKIPPED_STEPS, wait_s=0.09)
    assert not findings(clock, guard, LIGHT, WATCHED_STEPS, wait_s=0.001)
