"""Timing of calls: replayed from a CUDA graph, launched one by one, or kernel by kernel.

A measurement is of a list of calls on different inputs, so that no call finds in the L2 cache what
the one before it left there. Results are seconds a call.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Call = Callable[[], object]
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median of `runs` measurements, and their 10th and 90th percentile."""

    median_s: float
    low_s: float
    high_s: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        low_s, median_s, high_s = np.quantile(seconds, (0.1, 0.5, 0.9)).tolist()
        return cls(median_s, low_s, high_s, len(seconds))


@torch.no_grad()
def time_captured(calls: Sequence[Call], device: torch.device, runs: int) -> Timing:
    """Time the calls as one CUDA graph, replayed `runs` times: device time only.

    Results stay alive until the graph is done with, so that each call writes to memory of its own.
    On the CPU, which has no graphs, it is time_launched.
    """
    if device.type != "cuda":
        return time_launched(calls, device, runs)
    with torch.cuda.device(device):
        graph, results = torch.cuda.CUDAGraph(), []
        for call in calls:
            call()  # compiles, and makes what calls keep for the next time
        torch.cuda.synchronize()
        # Other threads (DALI has some) may use the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results += [call() for call in calls]
        starts, ends = _events(runs), _events(runs)
        for _ in range(WARM_UP):
            graph.replay()
        for start, end in zip(starts, ends, strict=True):
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        pairs = zip(starts, ends, strict=True)
        seconds = [start.elapsed_time(end) / 1e3 / len(calls) for start, end in pairs]
        results.clear()
        graph.reset()
        torch.cuda.empty_cache()  # a graph's memory serves no other graph before it is given back
    return Timing.of(seconds)


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]


@torch.no_grad()
def time_launched(calls: Sequence[Call], device: torch.device, runs: int) -> Timing:
    """Time the calls launched in turn from Python, until the device has finished all."""
    seconds = []
    for run in range(runs + 1):
        _wait_for(device)
        begin = time.perf_counter()
        for call in calls:
            call()
        _wait_for(device)
        if run:  # the first one warms up
            seconds.append((time.perf_counter() - begin) / len(calls))
    return Timing.of(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def kernel_seconds(calls: Sequence[Call], kernels: Sequence[str]) -> list[dict[str, float]] | None:
    """Return for each call the GPU seconds of the kernels with one of these names.

    All calls must launch the same number of them. None if the profiler did not see them all.
    """
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for call in calls:
            call()
        torch.cuda.synchronize()
    seen = sorted(
        (event.time_range.start, event.name, event.device_time / 1e6)
        for event in recorded.events() or ()
        if event.name in kernels
    )
    per_call, lost = divmod(len(seen), len(calls))
    if lost or not per_call:
        return None
    found: list[dict[str, float]] = []
    for first in range(0, len(seen), per_call):
        seconds = dict.fromkeys(kernels, 0.0)
        for _, name, took_s in seen[first : first + per_call]:
            seconds[name] += took_s
        found.append(seconds)
    return found


class Copies:
    """Copies on the device: the yardstick, measured in the run that is to be judged by it.

    Rates and times are those of the faster of two ways, a memcpy and a kernel that negates.
    """

    def __init__(self, device: torch.device, runs: int) -> None:
        self._device, self._runs = device, runs
        values = 2**28 if device.type == "cuda" else 2**24
        self._from = torch.ones(values, dtype=torch.int32, device=device)
        self._to = torch.empty_like(self._from)
        self._known: dict[tuple[int, int], float] = {}
        large_s = self.seconds(2 * 4 * values, 1)
        self.bytes_per_s = 2 * 4 * values / large_s

    def seconds(self, moved_bytes: int, calls: int) -> float:
        """Return the median time of a copy that reads half of the bytes and writes the other half.

        `calls` copies of different bytes (as far as there are that many) make a measurement.
        """
        values = min(max(1, moved_bytes // 8), len(self._from))
        key = (values, calls)
        if key not in self._known:
            apart = -(-values // 32) * 32  # begins where the device's largest loads can
            firsts = [i * apart % max(1, len(self._from) - values + 1) for i in range(calls)]
            places = [slice(first // 32 * 32, first // 32 * 32 + values) for first in firsts]
            ways = [[self._copy(place) for place in places], [self._negate(p) for p in places]]
            timings = [time_captured(way, self._device, self._runs) for way in ways]
            self._known[key] = min(timing.median_s for timing in timings)
        return self._known[key] * moved_bytes / (8 * values)

    def _copy(self, place: slice) -> Call:
        return lambda: self._to[place].copy_(self._from[place])

    def _negate(self, place: slice) -> Call:
        return lambda: torch.neg(self._from[place], out=self._to[place])
