"""--schedule auto, a run that chooses its compression: when, and for how much. No torch.

Until the first choice, which comes before the first step, the schedule is BEFORE.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from accelssl.errors import UserError
from accelssl.pipeline.compress.compression import UNCOMPRESSED
from accelssl.train.schedule import constant

BEFORE = replace(constant(UNCOMPRESSED), origin="the beginning of --schedule auto")


@dataclass(frozen=True)
class Auto:
    """Gradient errors are estimated at the shares `at` of the budget, before the next step.

    share: the most that all estimates together may cost, as a share of the budget, beside which
    they are spent. UserError for what makes no sense.
    """

    share: float = 0.02
    at: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(
                f"--auto-share {self.share:g} makes no sense.",
                "Use a share of the budget above 0 and at most 1, best 0.02.",
            )
        ascend = all(a < b for a, b in pairwise([*self.at, 1.0]))
        if not self.at or self.at[0] != 0 or not ascend:
            raise UserError(
                f"--auto-at {','.join(f'{share:g}' for share in self.at)} makes no sense.",
                "Let the shares ascend from exactly 0 and stay below 1: --auto-at 0,.25,.5,.75",
            )

    def reached(self, progress: float) -> float:
        """The last of the shares that is not beyond `progress`."""
        return max(share for share in self.at if share <= progress)


def read_auto(share: float | None, at: str | None) -> Auto:
    """From --auto-share and --auto-at, None for the usual. UserError as in Auto."""
    return Auto(
        Auto.share if share is None else share,
        Auto.at if at is None else read_points(at),
    )


def read_points(text: str) -> tuple[float, ...]:
    """'0,.5' as numbers, in the order given. UserError when it is no list of numbers."""
    try:
        points = tuple(float(part) for part in text.split(","))
    except ValueError:
        points = (math.nan,)
    if not all(map(math.isfinite, points)):
        raise UserError(
            f"--auto-at {text} is no list of shares.", "Write it like --auto-at 0,.25,.5,.75"
        )
    return points


def from_json(value: Any) -> Auto:
    """What asdict made of one. TypeError, ValueError or KeyError when it is anything else."""
    share, at = value["share"], value["at"]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (share, *at)):
        raise TypeError("auto has other than numbers")
    return Auto(float(share), tuple(map(float, at)))
