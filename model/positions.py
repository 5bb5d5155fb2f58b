"""Fixed 2-D sin-cos positions in coordinates scaled to the base patch.

The patch i of a p-pixel grid has its centre at c = (i + 0.5) p / 16 - 0.5 in units of 16-pixel
patches, so a token means the same place at every patch side. At p = 16 these are the integers.
"""

from functools import cache

import torch
from torch import Tensor

BASE_SIDE = 16
TEMPERATURE = 10_000.0


def positions(grid: int, p: int, width: int) -> Tensor:
    """table_SD, float32, S = grid^2 patches in row-major order, D = width (a multiple of 4).

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
    """`positions`, computed once for each device."""
    return positions(grid, p, width).to(device)
