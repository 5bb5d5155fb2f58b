"""Compression(p, drop) and the number of tokens that it keeps. Does not import torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from accelssl.errors import UserError

BASE_SIDE = 16
CHANNELS = 3
TOKEN_VALUES = CHANNELS * BASE_SIDE * BASE_SIDE
PATCH_SIDES = (16, 20, 24, 30, 40, 48)


@dataclass(frozen=True)
class Compression:
    """Patch side `p` in pixels, and the fraction `drop` of removed patches (paper, section 4).

    Raises UserError if p is not one of PATCH_SIDES or drop is outside [0, 1).
    """

    p: int
    drop: float

    def __post_init__(self) -> None:
        if self.p not in PATCH_SIDES:
            raise UserError(
                f"Patch side {self.p} is not supported.",
                f"Use one of {', '.join(map(str, PATCH_SIDES))}.",
            )
        if not 0 <= self.drop < 1:
            raise UserError(
                f"Drop {self.drop} is not a fraction that keeps patches.",
                "Use 0 <= drop < 1, for example 0.5.",
            )

    def grid(self, size: int) -> int:
        """Return the patches along a side of `size` px. Raise UserError if p does not fit."""
        if size % self.p:
            raise UserError(
                f"A crop of {size} px cannot be cut into {self.p} px patches.",
                f"Use a size divisible by {self.p}: 240 is divisible by every patch side.",
            )
        return size // self.p

    def keep(self, size: int) -> int:
        """Return the number of kept patches, floor((1 - drop) S): of 196 at drop .9, 19.

        Raises UserError if no patch is left. The CLS token is never dropped and not counted.
        """
        patches = self.grid(size) ** 2
        # 1 - .9 is .09999...: without the epsilon, 100 patches at drop .9 would keep 9.
        kept = int((1 - self.drop) * patches + 1e-9)
        if kept < 1:
            most = (patches - 1) * 10_000 // patches / 10_000  # rounding up would leave no patch
            raise UserError(
                f"Drop {self.drop} leaves none of the {patches} patches (p = {self.p}, {size} px).",
                f"Use a drop of at most {most:g}, or a smaller patch side.",
            )
        return kept

    def __str__(self) -> str:
        return f"p{self.p} d{self.drop:g}"


UNCOMPRESSED = Compression(BASE_SIDE, 0.0)


def fitting_sides(size: int) -> tuple[int, ...]:
    """Return the patch sides that divide crops of `size` px."""
    return tuple(side for side in PATCH_SIDES if size % side == 0)


def sizes_near(size: int, sides: Iterable[int]) -> str:
    """Return the crop sizes next to `size` that all patch sides divide, as text for a remedy.

    >>> sizes_near(120, [16])
    '112 or 128'
    """
    each = math.lcm(*sides)
    below = size // each * each
    return " or ".join(str(fitting) for fitting in (below, below + each) if fitting)
