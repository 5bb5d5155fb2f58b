"""The last step of a sum over rows: one launch adds the partial sums of all row groups.

Shapes: G groups, C columns.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

SIZES = {"GROUPS": 128, "COLUMNS": 32, "STAGES": 3}
WARPS = 8


@triton.jit(repr=lambda told: told.constants["NAME"])
def sum_columns(
    parts_ptr,
    sums_ptr,
    groups,
    width,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    NAME: tl.constexpr,
):
    """Add up some columns of all groups per program. NAME: the kernel's name in a trace."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < width
    total = tl.zeros((GROUPS, COLUMNS), tl.float32)
    for first in tl.range(0, groups, GROUPS, num_stages=STAGES):
        group = first + tl.arange(0, GROUPS)[:, None]
        is_value = (group < groups) & is_column[None, :]
        total += tl.load(parts_ptr + group * width + columns[None, :], mask=is_value, other=0.0)
    tl.store(sums_ptr + columns, tl.sum(total, axis=0), mask=is_column)


def column_sums(parts_GC: Tensor, name: str) -> Tensor:
    """Return sums_C of contiguous parts_GC, both float32, on the current device.

    name: the kernel's name in a trace, which shows whose time the kernel takes.
    """
    groups, width = parts_GC.shape
    sums_C = parts_GC.new_empty(width)
    programs = triton.cdiv(width, SIZES["COLUMNS"])
    if programs:
        told = SIZES | {"NAME": name}
        sum_columns[(programs,)](parts_GC, sums_C, groups, width, **told, num_warps=WARPS)
    return sums_C
