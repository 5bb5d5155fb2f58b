"""The clock of a run: units spent out of a budget. Everything scheduled is a function of it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from accelssl.errors import UserError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_units(text: str) -> float:
    """'0.2M', '50k' or '2e5' in units. UserError for anything else, and for nothing to spend."""
    number, scale = text.strip(), ""
    if number and number[-1].lower() in _SCALES:
        number, scale = number[:-1], number[-1].lower()
    try:
        units = float(number) * _SCALES[scale]
    except ValueError:
        units = math.nan
    if not math.isfinite(units):
        raise UserError(
            f"Budget {text!r} is not an amount of compute.",
            "Give units as a number, with k, M or G for thousands, millions or billions: 0.2M.",
        )
    if units <= 0:
        raise UserError(
            f"Budget {text!r} buys nothing.", "Give more than 0 units, for example 0.2M."
        )
    return units


def format_units(units: float) -> str:
    """212345.0 as '212k', 104e6 as '104M': three digits."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if units >= scale:
            return f"{units / scale:.3g}{suffix}"
    return f"{units:.3g}"


def as_option(units: float) -> str:
    """As format_units if that is exact, else in full: parse_units reads it back."""
    short = format_units(units)
    return short if parse_units(short) == units else f"{units:.10g}"


_COUNTED_SINGLY = 1_000_000


def steps_bought(total: float, stages: Iterable[tuple[float, float]]) -> list[int]:
    """Steps in each stage of a budget: stages are (the progress it ends at, units of a step)."""
    spent, counts = 0.0, []
    for until, step_cost in stages:
        many = max(0, int((until * total - spent) / step_cost) - 1)
        # Step by step, sums are rounded as those of the run; of a million that is beside the point.
        counts.append(many if many > _COUNTED_SINGLY else 0)
        spent += counts[-1] * step_cost
        while spent / total < until:
            spent += step_cost
            counts[-1] += 1
    return counts


@dataclass
class Budget:
    """`spent` of `total` units. The last step may overshoot by less than one step."""

    total: float
    spent: float = 0.0

    @property
    def progress(self) -> float:
        """Spent share of the budget, 0 to 1."""
        return min(1.0, self.spent / self.total)

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.total

    def after(self, images: int, sample_cost: float) -> "Budget":
        """As it will be once that is charged."""
        return Budget(self.total, self.spent + images * sample_cost)

    def charge(self, images: int, sample_cost: float) -> None:
        """One step of `images` images at `sample_cost` units each."""
        self.spent += images * sample_cost


USUAL_EPOCHS, MANY_EPOCHS = 1000, 1600


def fewer_epochs(budget: float, epochs: float) -> str | None:
    """What to spend instead of a budget that shows every image more often than anybody does."""
    if epochs <= MANY_EPOCHS:
        return None
    enough = format_units(budget * USUAL_EPOCHS / epochs)
    return f"Published runs have {USUAL_EPOCHS:,} at most: --budget {enough}"
