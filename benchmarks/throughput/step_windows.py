"""Timing of an endless loop's steps: windows of many steps, each closed by a wait.

Nothing waits for the device within a window, as nothing does in training; the wait at its end costs
the device one idle moment in many steps.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from accelssl.benchmarks.timing import Timing

LAUNCHES = 5


@dataclass(frozen=True)
class Windows:
    """`count` windows of at least `steps` steps and `least_s` seconds, after `warm_up` steps."""

    count: int
    steps: int
    least_s: float = 0.0
    warm_up: int = 2


@dataclass(frozen=True)
class Loop:
    """Result of a measurement: seconds per step, and the number of busy processor cores."""

    time: Timing
    cpu_cores: float


def measure(step: Callable[[], object], device: torch.device, windows: Windows) -> Loop:
    """Time `step`, called again and again. A StopIteration of it is an error of the caller."""
    for _ in range(windows.warm_up):
        step()
    # A window of its own says how many steps fill one; it is not counted.
    once_s = _window(step, device, windows.steps)
    steps = max(windows.steps, math.ceil(windows.least_s / max(once_s, 1e-9)))
    busy_s, began_s = cpu_seconds(), time.perf_counter()
    seconds = [_window(step, device, steps) for _ in range(windows.count)]
    elapsed_s = time.perf_counter() - began_s
    return Loop(Timing.of(seconds), (cpu_seconds() - busy_s) / elapsed_s)


def _window(step: Callable[[], object], device: torch.device, steps: int) -> float:
    """Seconds a step."""
    wait_for(device)
    began_s = time.perf_counter()
    for _ in range(steps):
        step()
    wait_for(device)
    return (time.perf_counter() - began_s) / steps


def launch_seconds(step: Callable[[], object], device: torch.device) -> float | None:
    """Median seconds until a step is under way on an idle GPU; None on the CPU, which computes."""
    if device.type != "cuda":
        return None
    seconds = []
    for _ in range(LAUNCHES):
        wait_for(device)
        began_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began_s)
    wait_for(device)
    return statistics.median(seconds)


def wait_for(device: torch.device) -> None:
    """Until what was asked for is done. Not all of the device: loaders work ahead on streams of
    their own, and the batches after a window's last one are none of its work."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def cpu_seconds() -> float:
    """Return the processor time of this process and its ended children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
