"""Windows take as many steps as they should, and time them."""

import time

import pytest
import torch

from accelssl.benchmarks.throughput import step_windows
from accelssl.benchmarks.throughput.step_windows import (
    Windows,
    cpu_seconds,
    launch_seconds,
    measure,
)

CPU = torch.device("cpu")


class Steps:
    """Steps that take so long each, counted."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.done = seconds, 0

    def __call__(self) -> None:
        time.sleep(self.seconds[min(self.done, len(self.seconds) - 1)])
        self.done += 1


def test_steps_are_timed_by_window_after_a_warm_up_that_does_not_count() -> None:
    slow_start = Steps([0.2, 0.1, *[0.005] * 100])
    loop = measure(slow_start, CPU, Windows(count=4, steps=3, warm_up=2))
    assert slow_start.done == 2 + 3 + 4 * 3
    assert loop.time.runs == 4
    assert 0.005 <= loop.time.low_s <= loop.time.median_s < 0.05


def test_windows_of_short_steps_last_as_long_as_asked() -> None:
    steps = Steps([0.01])
    began_s = time.perf_counter()
    measure(steps, CPU, Windows(count=2, steps=1, least_s=0.1, warm_up=0))
    assert time.perf_counter() - began_s >= 0.2 * 0.8
    assert 2 * 4 < steps.done <= 1 + 2 * 11


def test_every_window_waits_for_the_device_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    steps = Steps([0.0])
    monkeypatch.setattr(step_windows, "wait_for", lambda device: waits.append(steps.done))
    measure(steps, CPU, Windows(count=2, steps=5, warm_up=1))
    assert waits == [1, 6, 6, 11, 11, 16]


def test_cores_are_processor_time_by_time() -> None:
    def spin() -> None:
        began_s = cpu_seconds()
        while cpu_seconds() - began_s < 0.1:
            pass

    busy = measure(spin, CPU, Windows(2, 1, warm_up=0)).cpu_cores
    idle = measure(lambda: time.sleep(0.1), CPU, Windows(2, 1, warm_up=0)).cpu_cores
    assert idle < 0.5 * busy
    assert 0 < busy < 4


def test_the_cpu_launches_nothing() -> None:
    steps = Steps([0.0])
    assert launch_seconds(steps, CPU) is None
    assert steps.done == 0


@pytest.mark.gpu
def test_launching_is_shorter_than_what_is_launched() -> None:
    device = torch.device("cuda")
    a = torch.randn(8192, 8192, device=device)
    launch_s = launch_seconds(lambda: a @ a, device)
    assert launch_s is not None
    assert launch_s < 0.5 * measure(lambda: a @ a, device, Windows(3, 5)).time.median_s
