"""Checks that a setting is a finite number in its range. No torch."""

import math

from accelssl.errors import UserError
from accelssl.option_names import option_of

_TEMPERATURES = 0.001, 100.0
"""Range of temperatures at which a float32 softmax and a loss work, with a margin."""


def require(holds: bool, name: str, value: float, need: str) -> None:
    """Raise UserError unless the value is finite and `holds` is true."""
    is_finite = math.isfinite(value)
    if not (holds and is_finite):
        kind = "value" if is_finite else "finite value"
        raise UserError(f"{option_of(name)} {value:g} makes no sense.", f"Use a {kind} {need}.")


def require_temperature(name: str, value: float, best: str) -> None:
    """Raise UserError for a temperature at which a softmax fails."""
    least, most = _TEMPERATURES
    require(least <= value <= most, name, value, f"from {least:g} to {most:g}, {best}")


def require_momentum(value: float, best: float) -> None:
    """Raise UserError for a momentum of the key encoder outside 0 to 1."""
    require(0 <= value <= 1, "momentum", value, f"from 0 to 1, best {best:g}")
