"""The fastest that this device multiplies matrices, in the run that is to be judged by it."""

from dataclasses import dataclass

import torch

from accelssl.benchmarks.timing import Timing, time_launched

GPU_SIDES, CPU_SIDES = (4096, 8192), (512, 1024)
GPU_RUN_S, CPU_RUN_S = 0.5, 0.05
RUNS = 5


@dataclass(frozen=True)
class MatrixPeak:
    """Operations a second of a square product: the best of several sizes, each a median.

    dtype: as torch names it. side: of the best size. time: of one product.
    """

    dtype: str
    side: int
    time: Timing

    @property
    def flops_per_s(self) -> float:
        return float(2 * self.side**3 / self.time.median_s)


def matrix_peak(device: torch.device, dtype: torch.dtype) -> MatrixPeak:
    """Measure it: RUNS times for each size, each run so long that a boost of the clock is over."""
    on_gpu = device.type == "cuda"
    sides, run_s = (GPU_SIDES, GPU_RUN_S) if on_gpu else (CPU_SIDES, CPU_RUN_S)
    found = [_peak(side, run_s, device, dtype) for side in sides]
    return max(found, key=lambda peak: peak.flops_per_s)


def _peak(side: int, run_s: float, device: torch.device, dtype: torch.dtype) -> MatrixPeak:
    generator = torch.Generator(device).manual_seed(side)
    shape = (2, side, side)
    a, b = torch.randn(shape, device=device, generator=generator).to(dtype)
    product = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=product)

    once_s = time_launched([multiply] * 3, device, 1).median_s
    count = max(1, round(run_s / max(once_s, 1e-9)))
    timing = time_launched([multiply] * count, device, RUNS)
    return MatrixPeak(str(dtype).removeprefix("torch."), side, timing)
