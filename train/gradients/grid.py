"""Which compressions an analysis compares, what they cost, and who computes which."""

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
    """Every side with every drop. Without sides (drops) those of PATCH_SIDES (DROPS) that the run's
    crops allow.

    UserError for a compression that leaves nothing of them.
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
    """Units an image costs, by the rules of the run's method."""
    return config.sample_cost(Stage(1.0, cell))


def step_units(config: TrainConfig) -> float:
    """What an uncompressed step of the run costs: the budget that variances are adjusted to."""
    return config.batch * cost_of(config, UNCOMPRESSED)


def analysis_units(config: TrainConfig, cells: Sequence[Compression], images: int) -> float:
    """What the cells cost at one share, with a baseline."""
    others = [cell for cell in cells if cell != UNCOMPRESSED]
    return images * sum(cost_of(config, cell) for cell in [UNCOMPRESSED, *others])


def items_of(
    shares: Sequence[float],
    cells: Sequence[Compression],
    costs: Sequence[float],
    rank: int = 0,
    world: int = 1,
) -> list[Item]:
    """This rank's part: consecutive items that cost about as much as those of any other.

    A function of the arguments alone, so that ranks need not talk.
    """
    items = [Item(share, cell) for share in shares for cell in cells]
    prices, total = list(costs) * len(shares), sum(costs) * len(shares)
    mine, before = [], 0.0
    for item, price in zip(items, prices, strict=True):
        if min(int((before + price / 2) / total * world), world - 1) == rank:
            mine.append(item)
        before += price
    return mine
