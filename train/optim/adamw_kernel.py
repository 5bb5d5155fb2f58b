"""AdamW's update of many tensors in one launch, in Triton at the speed of memory.

In place of torch's fused one, which takes a launch for every few dozen tensors, whose last blocks
leave most of a GPU idle. Gradients may be in half precision, as the products gave them, and each
weight's own copy in half precision can be written in the same pass. Arithmetic is in float32, the
corrections of the moments' bias in float64 (Loshchilov and Hutter, ICLR 2019, algorithm 2, with
torch's decay of 1 - rate x decay).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from accelssl.model.ops.triton_device import on

WARPS = 4
# Four values of any dtype are a vector: of 16 bytes each, those of different dtypes would go to
# different threads. A thread holds four vectors of each tensor.
_VALUES = 4
BLOCK = 4 * _VALUES * 32 * WARPS

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_NEVER = 2**31 - 1

# Rows of the table that tells programs what to do, with a column for each tensor.
_FIRST, _SIZE, _DECAY, _WEIGHT, _GRADIENT, _MEAN, _SQUARE, _STEPS, _COPY = range(9)
_ROWS = 9


class Moved(NamedTuple):
    """A tensor to update, with its state. mean and square are the moments.

    steps (a scalar) counts the updates, including this one. All tensors are contiguous, float32 and
    of one shape, except the gradient and the optional copy. Gradients and copies may be in half
    precision, each with one dtype for a whole launch.
    """

    weight: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor
    decay: float
    copy: Tensor | None = None


@triton.jit
def _pointer(row_ptr, tensor, TYPE: tl.constexpr, VECTOR: tl.constexpr):
    """Return the pointer of a tensor whose start is aligned to whole vectors.

    The compiler ignores this alignment hint at any other place.
    """
    BYTES: tl.constexpr = VECTOR * TYPE.primitive_bitwidth // 8
    return tl.multiple_of(tl.load(row_ptr + tensor).to(tl.pointer_type(TYPE)), BYTES)


@triton.jit
def adamw_update(
    table_ptr,
    rate_ptr,
    of_mean,
    new_mean,
    log_of_mean,
    of_square,
    new_square,
    log_of_square,
    eps,
    COLUMNS: tl.constexpr,
    GRADIENTS: tl.constexpr,
    COPIES: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one block of one tensor per program.

    The tensor is the last one whose first block is not after the program's block. COPIES: dtype of
    the copies, None without copies. VECTOR: sizes and starts are multiples of VECTOR values.
    """
    block = tl.program_id(0)
    firsts = tl.load(table_ptr + tl.arange(0, COLUMNS))
    tensor = tl.sum((firsts <= block).to(tl.int32), axis=0) - 1
    start = (block - tl.load(table_ptr + tensor)) * BLOCK
    left = tl.load(table_ptr + 1 * COLUMNS + tensor) - start
    decay = tl.load(table_ptr + 2 * COLUMNS + tensor).to(tl.int32).to(tl.float32, bitcast=True)
    steps = tl.load(_pointer(table_ptr + 7 * COLUMNS, tensor, tl.float32, 1)).to(tl.float64)

    places = tl.arange(0, BLOCK)
    is_value = places < tl.multiple_of(tl.minimum(left, BLOCK).to(tl.int32), VECTOR)
    places += start
    weight_ptr = _pointer(table_ptr + 3 * COLUMNS, tensor, tl.float32, VECTOR) + places
    gradient_ptr = _pointer(table_ptr + 4 * COLUMNS, tensor, GRADIENTS, VECTOR) + places
    mean_ptr = _pointer(table_ptr + 5 * COLUMNS, tensor, tl.float32, VECTOR) + places
    square_ptr = _pointer(table_ptr + 6 * COLUMNS, tensor, tl.float32, VECTOR) + places
    weight = tl.load(weight_ptr, mask=is_value)
    gradient = tl.load(gradient_ptr, mask=is_value).to(tl.float32)
    mean = of_mean * tl.load(mean_ptr, mask=is_value) + new_mean * gradient
    square = of_square * tl.load(square_ptr, mask=is_value) + new_square * gradient * gradient

    rate = tl.load(rate_ptr)
    kept = 1.0 - rate * decay
    rate = rate / (1.0 - tl.exp(steps * log_of_mean)).to(tl.float32)
    root = tl.sqrt_rn((1.0 - tl.exp(steps * log_of_square)).to(tl.float32))
    weight = weight * kept - rate * mean / (tl.sqrt_rn(square) / root + eps)
    tl.store(weight_ptr, weight, mask=is_value)
    tl.store(mean_ptr, mean, mask=is_value)
    tl.store(square_ptr, square, mask=is_value)
    if COPIES is not None:
        copy_ptr = _pointer(table_ptr + 8 * COLUMNS, tensor, COPIES, VECTOR) + places
        tl.store(copy_ptr, weight.to(COPIES), mask=is_value)


def new_table(launches: int, tensors: int, pin_memory: bool = False) -> Tensor:
    """Return an empty CPU table for `launches` launches of up to `tensors` tensors each."""
    columns = triton.next_power_of_2(max(tensors, 16))
    shape = launches, _ROWS, columns
    return torch.empty(shape, dtype=torch.int64, pin_memory=pin_memory)


def update(
    moved: Sequence[Moved],
    rate: Tensor,
    betas: tuple[float, float],
    eps: float,
    table: Tensor,
) -> None:
    """Update weights, moments and copies in place, on their device. rate is a scalar there too.

    betas: decay rates of the moments. table: one launch's part of new_table. Do not change the
    table before the launch is over. In a CUDA graph, do not change the table while the graph is
    replayed, because each replay reads the table again.
    Raise ValueError for a tensor that differs from Moved.
    """
    if not moved:
        return
    blocks, vector = _fill(moved, table)
    first = moved[0]
    device = first.weight.device
    constants = {
        "COLUMNS": table.shape[1],
        "GRADIENTS": _TYPES[first.gradient.dtype],
        "COPIES": None if first.copy is None else _TYPES[first.copy.dtype],
        "VECTOR": vector,
        "BLOCK": BLOCK,
    }
    decays = [number for beta in betas for number in (beta, 1 - beta, _log(beta))]
    with on(device):
        told = table.to(device, non_blocking=True)
        adamw_update[(blocks,)](told, rate, *decays, eps, **constants, num_warps=WARPS)


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def _fill(moved: Sequence[Moved], table: Tensor) -> tuple[int, int]:
    """Fill the table. Return the number of blocks and the kernel's VECTOR."""
    rows = table.numpy()
    rows[_FIRST] = _NEVER
    blocks, vector = 0, _VALUES
    alike = [moved[0].gradient.dtype, None if moved[0].copy is None else moved[0].copy.dtype]
    for column, each in enumerate(moved):
        _check(each, alike)
        size = each.weight.numel()
        decay = np.float32(each.decay).view(np.int32)
        tensors = each.weight, each.gradient, each.mean, each.square, each.steps, each.copy
        places = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        rows[:, column] = blocks, size, decay, *places
        blocks += -(-size // BLOCK)
        begins = places[:4] + places[5:]
        if size % _VALUES or any(place % (4 * _VALUES) for place in begins):
            vector = 1
    return blocks, vector


def _check(moved: Moved, alike: Sequence[torch.dtype | None]) -> None:
    size, copy = moved.weight.shape, moved.copy
    state = moved.weight, moved.mean, moved.square
    tensors = [*state, moved.gradient] + ([] if copy is None else [copy])
    are_floats = all(tensor.dtype == torch.float32 for tensor in (*state, moved.steps))
    dtypes = [moved.gradient.dtype, None if copy is None else copy.dtype]
    are_alike = all(t.shape == size and t.device == moved.steps.device for t in tensors)
    if not are_floats or dtypes != alike or not are_alike:
        each = (*tensors, moved.steps)
        found = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in each)
        raise ValueError(
            f"to be updated is {found}: need one shape and device, and dtypes as Moved says."
        )
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"a tensor of {tuple(size)} to be updated is not contiguous.")
