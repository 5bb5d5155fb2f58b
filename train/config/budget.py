"""The budget of a run in units. All schedules are functions of the spent share (progress)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from accelssl.errors import UserError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_units(text: str) -> float:
    """Parse '0.2M', '50k' or '2e5' into units. Raise UserError for other text and for 0 or less."""
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
    """Return units with three digits: '212k' for 212345.0, '104M' for 104e6."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if units >= scale:
            return f"{units / scale:.3g}{suffix}"
    return f"{units:.3g}"


def as_option(units: float) -> str:
    """Return units as text for parse_units: as in format_units if this is exact, else in full."""
    short = format_units(units)
    return short if parse_units(short) == units else f"{units:.10g}"


_COUNTED_SINGLY = 1_000_000


def steps_bought(total: float, stages: Iterable[tuple[float, float]]) -> list[int]:
    """Return the number of steps in each stage, given as (progress at its end, units of a step)."""
    spent, counts = 0.0, []
    for until, step_cost in stages:
        many = max(0, int((until * total - spent) / step_cost) - 1)
        # Step by step, the sums round like those of the run. Above a million steps, the difference
        # does not matter.
        counts.append(many if many > _COUNTED_SINGLY else 0)
        spent += counts[-1] * step_cost
        while spent / total < until:
            spent += step_cost
            counts[-1] += 1
    return counts


@dataclass
class Budget:
    """Budget of `total` units, of which `spent` are used.

    The last step of a run may exceed the total by less than the cost of one step.
    """

    total: float
    spent: float = 0.0

    @property
    def progress(self) -> float:
        """Return the spent share of the budget, 0 to 1."""
        return min(1.0, self.spent / self.total)

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.total

    def after(self, images: int, sample_cost: float) -> "Budget":
        """Return the budget after a charge of `images` images at `sample_cost` units each."""
        return Budget(self.total, self.spent + images * sample_cost)

    def charge(self, images: int, sample_cost: float) -> None:
        """Charge one step of `images` images at `sample_cost` units each."""
        self.spent += images * sample_cost


USUAL_EPOCHS, MANY_EPOCHS = 1000, 1600


def fewer_epochs(budget: float, epochs: float) -> str | None:
    """Return advice to spend less if a run has over MANY_EPOCHS epochs, else None."""
    if epochs <= MANY_EPOCHS:
        return None
    enough = format_units(budget * USUAL_EPOCHS / epochs)
    return f"Published runs have {USUAL_EPOCHS:,} at most: --budget {enough}"
