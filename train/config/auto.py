"""Settings of --schedule auto, under which a run chooses its compressions. No torch.

The schedule is BEFORE until the first choice, which comes before the first step.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from accelssl.errors import UserError
from accelssl.pipeline.compression import (
    PATCH_SIDES,
    UNCOMPRESSED,
    Compression,
    fitting_sides,
)
from accelssl.train.config.number_lists import listed, numbers_in, read_numbers
from accelssl.train.config.schedule import constant

BEFORE = replace(constant(UNCOMPRESSED), origin="the beginning of --schedule auto")


class AutoOptions(NamedTuple):
    """Values of --auto-share, --auto-at, --auto-patches and --auto-drops, None if not given."""

    share: float | None = None
    at: str | None = None
    patches: str | None = None
    drops: str | None = None


UNSAID = AutoOptions()
"""The four options, none of them given."""


@dataclass(frozen=True)
class Auto:
    """Settings of a run that chooses its compressions by estimates of gradient errors.

    at: the shares of the budget at which the run estimates the errors, before the next step.
    share: the most that all estimates may cost, as a share of the budget. The cost is added to the
    budget.
    patches, drops: the patch sides and drops of the candidate compressions, () for the defaults.
    The uncompressed setting is always a candidate.

    Raise UserError for invalid values.
    """

    share: float = 0.02
    at: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    patches: tuple[int, ...] = ()
    drops: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(
                f"--auto-share {self.share:g} makes no sense.",
                "Use a share of the budget above 0 and at most 1, best 0.02.",
            )
        ascend = all(a < b for a, b in pairwise([*self.at, 1.0]))
        if not self.at or self.at[0] != 0 or not ascend:
            raise UserError(
                f"--auto-at {listed(self.at)} makes no sense.",
                "Let the shares ascend from exactly 0 and stay below 1: --auto-at 0,.25,.5,.75",
            )
        for side in self.patches:
            if side not in PATCH_SIDES:
                raise UserError(
                    f"--auto-patches {side} is no patch side that is supported.",
                    f"Use some of {listed(PATCH_SIDES)}.",
                )
        for drop in self.drops:
            if not 0 <= drop < 1:
                raise UserError(
                    f"--auto-drops {drop:g} is not a fraction that keeps patches.",
                    "Use drops from 0 to below 1: --auto-drops 0,.25,.5,.75",
                )

    def refuse_misfits(self, size: int) -> None:
        """Raise UserError for patches or drops that do not fit crops of `size` px."""
        fitting = fitting_sides(size)
        for side in self.patches:
            if side not in fitting:
                raise UserError(
                    f"A crop of {size} px (--size) cannot be cut into patches of --auto-patches "
                    f"{side}.",
                    f"Use some of --auto-patches {listed(fitting)}, or a --size that {side} "
                    "divides; all sides divide 240.",
                )
        if self.drops:
            side, drop = max(self.patches or fitting), max(self.drops)
            try:
                Compression(side, drop).keep(size)
            except UserError as error:
                what = f"--auto-drops {drop:g} is too much for crops of {size} px (--size)"
                raise UserError(f"{what}: {error.what}", error.remedy) from None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for from_json, without patches and drops that were not given.

        Checkpoints of earlier versions have no patches and drops; a comparison with them must hold.
        """
        said = {"patches": list(self.patches), "drops": list(self.drops)}
        return {"share": self.share, "at": list(self.at)} | {k: v for k, v in said.items() if v}

    def reached(self, progress: float) -> float:
        """Return the last share in `at` that is not above `progress`."""
        return max(share for share in self.at if share <= progress)


def compared_by(what: str) -> str:
    """Return the end of a message about crops that do not fit uncompressed patches: the reason."""
    return f", and {what} compares gradients with those of the uncompressed network, which has them"


def read_auto(options: AutoOptions) -> Auto:
    """Return the settings for the given options. Raise UserError for invalid values."""
    share, at, patches, drops = options
    return Auto(
        Auto.share if share is None else share,
        Auto.at if at is None else read_points(at),
        () if patches is None else read_numbers("--auto-patches", patches, int),
        () if drops is None else read_numbers("--auto-drops", drops, float),
    )


def read_points(text: str) -> tuple[float, ...]:
    """Parse '0,.5' into numbers in the given order. Raise UserError for any other text."""
    points = numbers_in(text, float)
    if not points:
        raise UserError(
            f"--auto-at {text} is no list of shares.", "Write it like --auto-at 0,.25,.5,.75"
        )
    return points


def from_json(value: Any) -> Auto:
    """Read the JSON object of Auto.to_json. Raise TypeError, ValueError or KeyError for others."""
    share, at = value["share"], value["at"]
    patches, drops = value.get("patches", ()), value.get("drops", ())  # absent in older files
    if not all(type(side) is int for side in patches):
        raise TypeError("auto has patches other than whole numbers")
    numbers = (share, *at, *drops)
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers):
        raise TypeError("auto has other than numbers")
    return Auto(float(share), tuple(map(float, at)), tuple(patches), tuple(map(float, drops)))
