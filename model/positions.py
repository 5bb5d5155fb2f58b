"""Positions of tokens: fixed 2-D sin-cos at scaled coordinates, or a learned table.

The patch i of a p-pixel grid has its centre at c = (i + 0.5) p / 16 - 0.5 in units of 16-pixel
patches, so a token means the same place at every patch side. At p = 16 these are the integers.
A learned table is stretched over every crop instead, as its authors do.

Shapes: S = grid^2 patches in row-major order, D width.
"""

from functools import cache

import torch
from torch import Tensor

BASE_SIDE = 16
TEMPERATURE = 10_000.0
BICUBIC = -0.75  # the free parameter of the cubic kernel, as torch and DINO have it


def positions(grid: int, p: int, width: int) -> Tensor:
    """Return table_SD, float32, D = width (a multiple of 4).

    Channels are [sin row, cos row, sin column, cos column], as in the fixed positions of MoCo-v3
    (Chen et al., ICCV 2021), whose first half runs over rows.
    """
    if width % 4:
        raise ValueError(f"width {width}: need a multiple of 4 for 2-D sin-cos positions.")
    coordinate = (torch.arange(grid, dtype=torch.float64) + 0.5) * (p / BASE_SIDE) - 0.5
    row, column = torch.meshgrid(coordinate, coordinate, indexing="ij")
    quarter = width // 4
    omega = TEMPERATURE ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
    angle_row, angle_column = row.reshape(-1, 1) * omega, column.reshape(-1, 1) * omega
    table = [angle_row.sin(), angle_row.cos(), angle_column.sin(), angle_column.cos()]
    return torch.cat(table, dim=1).float()


@cache
def positions_on(grid: int, p: int, width: int, device: torch.device) -> Tensor:
    """Return `positions`, computed once for each device."""
    return positions(grid, p, width).to(device)


def resampled(table_SD: Tensor, grid: int) -> Tensor:
    """Return table_SD: a learned table resampled to another grid, bicubically and with gradient.

    The result is that of F.interpolate, which DINO and timm use. Matrix products replace
    F.interpolate here, because their gradient is the same in every run. For equal grids the result
    is the table itself. The precision is the table's, also under autocast.
    """
    side = round(len(table_SD) ** 0.5)
    if grid == side:
        return table_SD
    with torch.autocast(table_SD.device.type, enabled=False):
        weights = _bicubic_on(side, grid, table_SD.dtype, table_SD.device)
        rows = torch.einsum("is,std->itd", weights, table_SD.view(side, side, -1))
        return torch.einsum("jt,itd->ijd", weights, rows).flatten(0, 1)


@cache
def _bicubic_on(side: int, grid: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (grid, side): the weight of each of `side` values at each `grid` place of an axis."""
    place = (torch.arange(grid, dtype=torch.float64) + 0.5) * (side / grid) - 0.5
    first = place.floor()
    weights = torch.zeros(grid, side, dtype=torch.float64)
    for tap in range(-1, 3):
        weight = _cubic((place - first - tap).abs())
        index = (first.long() + tap).clamp(0, side - 1)
        weights[torch.arange(grid), index] += weight
    return weights.to(device, dtype)


def _cubic(distance: Tensor) -> Tensor:
    near = ((BICUBIC + 2) * distance - (BICUBIC + 3)) * distance**2 + 1
    far = BICUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance <= 1, near, far)
