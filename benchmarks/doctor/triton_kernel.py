"""A kernel so small that nothing but Triton itself can fail."""

import torch
import triton
import triton.language as tl
from torch import Tensor

version: str = triton.__version__
_BLOCK = 256


@triton.jit  # type: ignore[untyped-decorator]
def _double(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_there = places < count
    tl.store(target + places, 2 * tl.load(source + places, mask=is_there), mask=is_there)


def doubled(numbers: Tensor) -> Tensor:
    """Return twice the contiguous numbers, computed by Triton."""
    result = torch.empty_like(numbers)
    count = numbers.numel()
    with torch.cuda.device_of(numbers):  # type: ignore[no-untyped-call]
        _double[(triton.cdiv(count, _BLOCK),)](numbers, result, count, BLOCK=_BLOCK)
    return result
