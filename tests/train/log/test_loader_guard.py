"""The guard that says when a stage waits for its data."""

from collections.abc import Iterator

import pytest

from accelssl.pipeline.compression import Compression
from accelssl.train.config.schedule import Stage
from accelssl.train.log import loader_guard
from accelssl.train.log.loader_guard import SKIPPED_STEPS, WATCHED_STEPS, LoaderGuard

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
    clock: Clock, guard: LoaderGuard, stage: Stage, steps: int, late_every: int
) -> list[dict[str, float]]:
    """Steps of 100 ms; the batch of each late_every-th was late, of none if that is 0."""
    found = []
    for step in range(steps):
        clock.now += 0.1
        found.append(guard.finding(stage, late_every > 0 and step % late_every == 0))
    return [line for line in found if line]


def test_a_stage_that_waits_is_named_once_with_its_figures(clock: Clock) -> None:
    (line,) = findings(clock, LoaderGuard(512), LIGHT, 500, late_every=5)
    assert line == {"p": 48, "drop": 0.5, "late": 0.2, "images_per_s": 5120.0}


def test_a_stage_that_seldom_waits_is_not_named(clock: Clock) -> None:
    assert not findings(clock, LoaderGuard(512), LIGHT, 500, late_every=20)
    assert not findings(clock, LoaderGuard(512), LIGHT, 500, late_every=0)


def test_each_stage_is_looked_at_by_itself(clock: Clock) -> None:
    guard = LoaderGuard(512)
    assert findings(clock, guard, LIGHT, 200, late_every=2)
    assert not findings(clock, guard, FULL, 200, late_every=0)
    assert findings(clock, guard, LIGHT, 200, late_every=2)


def test_the_first_steps_of_a_stage_may_wait(clock: Clock) -> None:
    guard = LoaderGuard(512)
    assert not findings(clock, guard, LIGHT, SKIPPED_STEPS, late_every=1)
    assert not findings(clock, guard, LIGHT, WATCHED_STEPS, late_every=0)
