"""The compressions of an analysis, their costs, and their distribution over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression, fitting_sides
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.number_lists import listed
from accelssl.train.config.schedule import Stage

DROPS = (0.0, 0.25, 0.5, 0.75, 0.9)
SHARES: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Item:
    """One cell at one share of the run's budget."""

    share: float
    cell: Compression


def grid_of(
    config: TrainConfig, sides: Sequence[int] = (), drops: Sequence[float] = ()
) -> tuple[Compression, ...]:
    """Return every side with every drop.

    Defaults are those of PATCH_SIDES and DROPS that the run's crops allow. Raise UserError for a
    compression that keeps no patch.
    """
    fitting = fitting_sides(config.size)
    cells = [Compression(p, drop) for p, drop in product(sides or fitting, drops or DROPS)]
    if unfit := [p for p in sides if config.size % p]:
        raise UserError(
            f"The run's crops of {config.size} px cannot be cut into {unfit[0]} px patches.",
            f"Use --patches {listed(fitting)}, or some of them.",
        )
    if not drops:
        cells = [cell for cell in cells if (1 - cell.drop) * cell.grid(config.size) ** 2 >= 1]
    for cell in cells:
        cell.keep(config.size)
    return tuple(cells)


def cost_of(config: TrainConfig, cell: Compression) -> float:
    """Return the units per image by the rules of the run's method."""
    return config.sample_cost(Stage(1.0, cell))


def step_units(config: TrainConfig) -> float:
    """Return the units of the run's uncompressed step: the budget that variances are adjusted
    to."""
    return config.batch * cost_of(config, UNCOMPRESSED)


def analysis_units(config: TrainConfig, cells: Sequence[Compression], images: int) -> float:
    """Return the units of the cells and a baseline at one share."""
    others = [cell for cell in cells if cell != UNCOMPRESSED]
    return images * sum(cost_of(config, cell) for cell in [UNCOMPRESSED, *others])


def items_of(
    shares: Sequence[float],
    cells: Sequence[Compression],
    costs: Sequence[float],
    rank: int = 0,
    world: int = 1,
) -> list[Item]:
    """Return this rank's consecutive items, at about the same cost as every other rank's.

    The result depends on the arguments alone, so that ranks need no communication.
    """
    items = [Item(share, cell) for share in shares for cell in cells]
    prices, total = list(costs) * len(shares), sum(costs) * len(shares)
    mine, before = [], 0.0
    for item, price in zip(items, prices, strict=True):
        if min(int((before + price / 2) / total * world), world - 1) == rank:
            mine.append(item)
        before += price
    return mine
