"""The variables of the environment that switch parts of accelssl off and on. No torch."""

import os

from accelssl.errors import UserError

PREFIX = "ACCELSSL_"
SHORT_ATTENTION = PREFIX + "SHORT_ATTENTION"
FAST_GELU = PREFIX + "FAST_GELU"
FAST_NORM = PREFIX + "FAST_NORM"
FAST_ADAMW = PREFIX + "FAST_ADAMW"
CHECK_INDICES = PREFIX + "CHECK_INDICES"
_KNOWN = (SHORT_ATTENTION, FAST_GELU, FAST_NORM, FAST_ADAMW, CHECK_INDICES)


def is_off(name: str) -> bool:
    """Whether what is on by itself is switched off."""
    return os.environ.get(name) == "0"


def is_on(name: str) -> bool:
    """Whether what is off by itself is switched on."""
    return os.environ.get(name) == "1"


def given() -> dict[str, str]:
    """What is set of them, by name; also what begins like one and is none."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def refuse_misfits() -> None:
    """UserError for a switch that does not exist, or is neither 0 nor 1: nothing would follow."""
    for name, value in given().items():
        if name not in _KNOWN:
            raise UserError(
                f"{name} is set in the environment, and means nothing.",
                f"Unset it, or use one of {', '.join(_KNOWN)}.",
            )
        if value not in ("0", "1"):
            raise UserError(
                f"{name} is {value!r} in the environment.", "Set it to 0 or 1, or unset it."
            )
