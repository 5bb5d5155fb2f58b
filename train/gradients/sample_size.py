"""The size of an estimate within a run, for its share of the budget. No torch.

The number of images follows from the share. If it is too small, fewer compressions are compared:
first without sides 20 and 40, then also without drops .25 and .9, if other cells than the
uncompressed one remain.
"""

import math
from dataclasses import dataclass

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.text import plural
from accelssl.train.config.auto import Auto
from accelssl.train.config.budget import format_units
from accelssl.train.config.config import TrainConfig
from accelssl.train.gradients.grid import analysis_units, grid_of

MOST_SAMPLES = 16_384
"""The paper's number. More images would add little."""
FEWEST_SUBBATCHES = 8
SUBBATCH = 64
_SIDES, _DROPS = (20, 40), (0.25, 0.9)


@dataclass(frozen=True)
class Size:
    """The size of one estimate: compressions, and sub-batches of `subbatch` images."""

    cells: tuple[Compression, ...]
    subbatch: int
    subbatches: int

    @property
    def samples(self) -> int:
        return self.subbatch * self.subbatches


def affordable(config: TrainConfig) -> Size:
    """Return the largest estimate that a run with `auto` can pay for, the same at all its points.

    Raise UserError, with the budget needed, if even the smallest is too expensive, and if there is
    nothing to choose from.
    """
    auto = config.auto or Auto()
    subbatch = min(SUBBATCH, config.batch)
    each = auto.share * config.budget / len(auto.at)
    for cells in _grids(config):
        price = analysis_units(config, cells, subbatch)
        subbatches = int(min(each / price, MOST_SAMPLES // subbatch))
        if subbatches >= FEWEST_SUBBATCHES:
            return Size(cells, subbatch, subbatches)
    least = math.ceil(FEWEST_SUBBATCHES * price * len(auto.at) / auto.share)
    ways = [f"--budget {least} or more"]
    ways += ["a larger --auto-share"] if auto.share < 1 else []
    ways += ["fewer points with --auto-at"] if len(auto.at) > 1 else []
    raise UserError(
        f"--schedule auto is to measure gradients at {plural(len(auto.at), 'point')} for "
        f"{100 * auto.share:g}% of {format_units(config.budget)} units: that pays for "
        f"{plural(subbatches, 'sub-batch')} of {plural(subbatch, 'image')} at each, "
        f"{FEWEST_SUBBATCHES} are needed.",
        f"Use {', '.join(ways)}, fewer compressions with --auto-patches and --auto-drops, or "
        "another schedule: --schedule default or FILE, or --patch and --drop.",
    )


def _grids(config: TrainConfig) -> list[tuple[Compression, ...]]:
    """Return grids from fine to coarse. Each has the uncompressed cell, the baseline of all
    estimates."""
    auto = config.auto or Auto()
    whole = grid_of(config, auto.patches, auto.drops)
    if UNCOMPRESSED not in whole:
        whole = (UNCOMPRESSED, *whole)
    fewer_sides = tuple(cell for cell in whole if cell.p not in _SIDES)
    coarse = tuple(cell for cell in fewer_sides if cell.drop not in _DROPS)
    grids = [cells for cells in (whole, fewer_sides, coarse) if len(cells) > 1]
    if not grids:
        raise UserError(
            f"--schedule auto has nothing to choose from but {UNCOMPRESSED}, with crops of "
            f"{config.size} px.",
            "Name more compressions with --auto-patches and --auto-drops, use a larger --size, or "
            "--patch 16 --drop 0 instead.",
        )
    return grids
