"""A kernel that does nothing but appear in a trace: whatever is launched before it, ran before it.

A CUDA graph has it where it was captured, unlike the ranges of the profiler, which are the host's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def step_mark(place):  # type: ignore[no-untyped-def]
    tl.store(place, 1)


def launch_mark(place: Tensor) -> None:
    """Launch the mark on the current stream. place: one int32, on the GPU."""
    with torch.cuda.device_of(place):  # type: ignore[no-untyped-call]
        step_mark[(1,)](place, num_warps=1)
