"""Residual sum and layer norm in Triton. It keeps the contract of add_norm.py.

A program holds whole rows, walks over all and takes every so many: few programs, so that their sums
over rows, kept in registers, are few as well, and added up in microseconds. What it reads next is
on its way while it computes. A row is as wide as the next power of two, the rest masked; a thread
has so many values of it, whatever the width: forward a warp has a row of 768 for itself.

Shapes: R rows, D width, G programs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from accelssl.model.ops.column_sums import column_sums
from accelssl.model.ops.triton_device import on

# Of a row, a thread has as many values; these and the sizes are the fastest on an H200.
FORWARD_VALUES, BACKWARD_VALUES = 32, 8
FORWARD_SIZES = {"ROWS": 1, "STAGES": 3}
BACKWARD_SIZES = {"ROWS": 1, "STAGES": 3}
# By their registers, that many warps run at once on a multiprocessor. The programs are as many:
# more would wait for the others' end.
FORWARD_WARPS, BACKWARD_WARPS = 24, 16
_PROGRAMS_INTERPRETED = 3


@triton.jit(do_not_specialize=["rows"])
def add_norm_forward(
    x_ptr,
    branch_ptr,
    branch_bias_ptr,
    weight_ptr,
    bias_ptr,
    sum_ptr,
    normed_ptr,
    stats_ptr,
    rows,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BRANCH_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    weight = tl.load(weight_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if HAS_BRANCH_BIAS:
        branch_bias = tl.load(branch_bias_ptr + columns, mask=is_column, other=0.0)
        branch_bias = branch_bias.to(tl.float32)[None, :]
    tiles = tl.cdiv(rows, ROWS)
    stride = tl.full((), ROWS * WIDTH, tl.int64)  # numbers of values may not fit 32 bits
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        first = tile * ROWS
        row = tl.arange(0, ROWS)
        is_row = row < rows - first
        is_value = is_row[:, None] & is_column[None, :]
        places = row[:, None] * WIDTH + columns[None, :]
        begin = tile * stride
        branch = tl.load(branch_ptr + begin + places, mask=is_value, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + begin + places, mask=is_value, other=0.0)
        if HAS_BRANCH_BIAS:
            branch += branch_bias
        x += branch
        tl.store(sum_ptr + begin + places, x, mask=is_value)
        mean = tl.sum(x, axis=1) / WIDTH
        # The mean is taken off before squares are summed: nothing cancels, however large it is.
        centred = tl.where(is_column[None, :], x - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)
        normed = centred * rstd[:, None] * weight + bias
        normed = normed.to(normed_ptr.dtype.element_ty)
        tl.store(normed_ptr + begin + places, normed, mask=is_value)
        tl.store(stats_ptr + first + row, mean, mask=is_row)
        tl.store(stats_ptr + rows + first + row, rstd, mask=is_row)


@triton.jit(do_not_specialize=["rows"])
def add_norm_backward(
    of_sum_ptr,
    of_normed_ptr,
    sum_ptr,
    stats_ptr,
    weight_ptr,
    of_x_ptr,
    of_branch_ptr,
    parts_ptr,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute gradients; write each program's sums over its rows to its part of parts_G3D.

    The sums are the gradients by weight, bias and branch bias.
    """
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    weight = tl.load(weight_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    of_branch_bias = tl.zeros((BLOCK,), tl.float32)
    tiles = tl.cdiv(rows, ROWS)
    stride = tl.full((), ROWS * WIDTH, tl.int64)  # numbers of values may not fit 32 bits
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        first = tile * ROWS
        row = tl.arange(0, ROWS)
        is_row = row < rows - first
        is_value = is_row[:, None] & is_column[None, :]
        places = row[:, None] * WIDTH + columns[None, :]
        begin = tile * stride
        grad = tl.load(of_normed_ptr + begin + places, mask=is_value, other=0.0).to(tl.float32)
        x = tl.load(sum_ptr + begin + places, mask=is_value, other=0.0)
        of_x = tl.load(of_sum_ptr + begin + places, mask=is_value, other=0.0)
        mean = tl.load(stats_ptr + first + row, mask=is_row, other=0.0)
        rstd = tl.load(stats_ptr + rows + first + row, mask=is_row, other=0.0)
        x_hat = (x - mean[:, None]) * rstd[:, None]
        of_weight += tl.sum(grad * x_hat, axis=0)
        of_bias += tl.sum(grad, axis=0)
        grad *= weight
        # Both sums as one: a row's threads then meet once less.
        slope, level = tl.split(tl.sum(tl.join(grad * x_hat, grad), axis=1) / WIDTH)
        of_x += rstd[:, None] * (grad - level[:, None] - x_hat * slope[:, None])
        of_branch_bias += tl.sum(of_x, axis=0)
        tl.store(of_x_ptr + begin + places, of_x, mask=is_value)
        of_branch = of_x.to(of_branch_ptr.dtype.element_ty)
        tl.store(of_branch_ptr + begin + places, of_branch, mask=is_value)
    parts_ptr += tl.program_id(0) * (3 * WIDTH)
    tl.store(parts_ptr + columns, of_weight, mask=is_column)
    tl.store(parts_ptr + WIDTH + columns, of_bias, mask=is_column)
    tl.store(parts_ptr + 2 * WIDTH + columns, of_branch_bias, mask=is_column)


def forward(
    x_NLD: Tensor,
    branch_NLD: Tensor,
    branch_bias_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum_NLD, normed_NLD and stats_2R of contiguous tensors, on their device."""
    rows, width = _shape(x_NLD)
    sum_NLD, normed_NLD = torch.empty_like(x_NLD), torch.empty_like(branch_NLD)
    stats_2R = x_NLD.new_empty((2, rows))
    read = x_NLD, branch_NLD, branch_bias_D, weight_D, bias_D
    if x_NLD.numel():
        warps = warps_of(width, FORWARD_VALUES)
        programs = _programs(x_NLD, FORWARD_WARPS // warps)
        with on(x_NLD.device):
            add_norm_forward[(min(programs, triton.cdiv(rows, FORWARD_SIZES["ROWS"])),)](
                *read,
                sum_NLD,
                normed_NLD,
                stats_2R,
                rows,
                eps,
                WIDTH=width,
                BLOCK=triton.next_power_of_2(width),
                HAS_BRANCH_BIAS=branch_bias_D is not None,
                **FORWARD_SIZES,
                num_warps=warps,
            )
    return sum_NLD, normed_NLD, stats_2R


def backward(
    of_sum_NLD: Tensor, of_normed_NLD: Tensor, sum_NLD: Tensor, stats_2R: Tensor, weight_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients by x and branch, and sums_3D, of contiguous tensors, on their device."""
    rows, width = _shape(sum_NLD)
    of_x_NLD, of_branch_NLD = torch.empty_like(sum_NLD), torch.empty_like(of_normed_NLD)
    if not sum_NLD.numel():
        return of_x_NLD, of_branch_NLD, sum_NLD.new_zeros((3, width))
    warps = warps_of(width, BACKWARD_VALUES)
    programs = _programs(sum_NLD, BACKWARD_WARPS // warps)
    groups = min(programs, triton.cdiv(rows, BACKWARD_SIZES["ROWS"]))
    parts_GC = sum_NLD.new_empty((groups, 3 * width))
    with on(sum_NLD.device):
        add_norm_backward[(groups,)](
            of_sum_NLD,
            of_normed_NLD,
            sum_NLD,
            stats_2R,
            weight_D,
            of_x_NLD,
            of_branch_NLD,
            parts_GC,
            rows,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            **BACKWARD_SIZES,
            num_warps=warps,
        )
        sums_3D = column_sums(parts_GC, "add_norm_sums").view(3, width)
    return of_x_NLD, of_branch_NLD, sums_3D


def _shape(x_NLD: Tensor) -> tuple[int, int]:
    width = x_NLD.shape[-1]
    return x_NLD.shape[:-1].numel(), width


def warps_of(width: int, values: int) -> int:
    """Return the number of warps of a program whose threads hold so many values of a row."""
    warps: int = triton.next_power_of_2(width) // (32 * values)
    return max(1, warps)


def _programs(tensor: Tensor, programs_an_sm: int) -> int:
    if tensor.device.type != "cuda":
        return _PROGRAMS_INTERPRETED
    properties = torch.cuda.get_device_properties(tensor.device)
    return properties.multi_processor_count * max(1, programs_an_sm)
