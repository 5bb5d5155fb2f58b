"""GELU in Triton at the speed of memory. It keeps the contract of gelu.py.

While a value of 2 bytes is read and one written, a GPU has time for some 27 operations: error
functions take more. So T(u), the share of a standard normal above u = |h|, is a power of two whose
logarithm is a polynomial of u, and with it

    gelu(h) = max(h, 0) - u T(u);   its slope is T(u) - u density(u) where h <= 0, else 1 minus that

Nothing cancels: small results keep their relative precision, which those of 1 + erf lose. The
polynomial is the minimax fit on [0, 8] with T(0) = 1/2. In float32 gelu is wrong by at most 4e-7,
and T(u) by at most a part in 3,000, a sixth of what bfloat16 rounds. Beyond 8 all is as at 8, where
T is 6e-16.

Shapes: R rows, C columns.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from accelssl.model.ops.column_sums import column_sums
from accelssl.model.ops.triton_device import on

WARPS = 4
# A thread holds two vectors of 8 values, a warp's lanes lie side by side. A program of the backward
# pass does so few rows that several times as many programs are there as run at once, and so many
# that their sums are next to nothing.
FORWARD_SIZES = {"BLOCK": 16 * 32 * WARPS}
BACKWARD_SIZES = {"ROWS": 2 * WARPS, "COLUMNS": 8 * 32, "ROWS_A_PROGRAM": 128}


@triton.jit
def _size(h):
    """Return min(|h|, 8), NaN where h is NaN."""
    return tl.minimum(tl.abs(h), 8.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tail(u):
    """Return the share of a standard normal above u, for u from 0 to 8."""
    log2 = -1.355041376882582e-06 * u + 5.1768562116194516e-05
    log2 = log2 * u - 0.0008553856750950217
    log2 = log2 * u + 0.008241130970418453
    log2 = log2 * u - 0.05350726470351219
    log2 = log2 * u - 0.4588088393211365
    log2 = log2 * u - 1.1511558294296265
    return tl.exp2(log2 * u - 1.0)


@triton.jit
def _density(u):
    """Return the density of a standard normal: exp(-u^2 / 2) / sqrt(2 pi)."""
    return tl.exp2(u * u * -0.7213475204444817 - 1.3257480647361593)


@triton.jit
def gelu_forward(h_ptr, a_ptr, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_value = places < count
    h = tl.load(h_ptr + places, mask=is_value, other=0.0).to(tl.float32)
    u = _size(h)
    a = tl.maximum(h, 0.0) - u * _tail(u)
    tl.store(a_ptr + places, a.to(a_ptr.dtype.element_ty), mask=is_value)


@triton.jit
def gelu_backward(
    grad_ptr,
    h_ptr,
    of_h_ptr,
    sums_ptr,
    rows,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_A_PROGRAM: tl.constexpr,
):
    """Compute COLUMNS of ROWS_A_PROGRAM rows per program; write their sums to a part of sums_GC."""
    blocks = tl.cdiv(width, COLUMNS)
    group = tl.program_id(0) // blocks
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < width
    begin = group.to(tl.int64) * ROWS_A_PROGRAM
    count = tl.minimum(rows - begin, ROWS_A_PROGRAM).to(tl.int32)
    grad_ptr += begin * width
    h_ptr += begin * width
    of_h_ptr += begin * width
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    # Three stages: what two iterations read is on its way. The compiler would load late.
    for first in tl.range(0, ROWS_A_PROGRAM, ROWS, num_stages=3):
        row = first + tl.arange(0, ROWS)[:, None]
        places = row * width + columns[None, :]
        is_value = (row < count) & is_column[None, :]
        h = tl.load(h_ptr + places, mask=is_value, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + places, mask=is_value, other=0.0).to(tl.float32)
        u = _size(h)
        slope = _tail(u) - u * _density(u)
        of_h = grad * tl.where(h > 0, 1.0 - slope, slope)
        sums += of_h
        tl.store(of_h_ptr + places, of_h.to(of_h_ptr.dtype.element_ty), mask=is_value)
    sums_ptr += group.to(tl.int64) * width
    tl.store(sums_ptr + columns, tl.sum(sums, axis=0), mask=is_column)


def forward(h_NLC: Tensor) -> Tensor:
    """Return a_NLC of contiguous h_NLC, on its device."""
    a_NLC = torch.empty_like(h_NLC)
    count = h_NLC.numel()
    programs = triton.cdiv(count, FORWARD_SIZES["BLOCK"])
    if programs:
        with on(h_NLC.device):
            gelu_forward[(programs,)](h_NLC, a_NLC, count, **FORWARD_SIZES, num_warps=WARPS)
    return a_NLC


def backward(grad_NLC: Tensor, h_NLC: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient by h_NLC of contiguous grad_NLC and h_NLC, and its row sums, sums_C."""
    width = h_NLC.shape[-1]
    rows = h_NLC.numel() // max(width, 1)
    groups = triton.cdiv(rows, BACKWARD_SIZES["ROWS_A_PROGRAM"])
    of_h_NLC = torch.empty_like(h_NLC)
    sums_GC = h_NLC.new_empty((groups, width), dtype=torch.float32)
    tensors = grad_NLC, h_NLC, of_h_NLC, sums_GC
    programs = groups * triton.cdiv(width, BACKWARD_SIZES["COLUMNS"])
    with on(h_NLC.device):
        if programs:
            gelu_backward[(programs,)](*tensors, rows, width, **BACKWARD_SIZES, num_warps=WARPS)
        return of_h_NLC, column_sums(sums_GC, "gelu_sums")
