"""Parsing and printing of lists of numbers in options, such as '0,.25,.5'."""

from collections.abc import Callable
from math import isfinite
from typing import TypeVar

from accelssl.errors import UserError

T = TypeVar("T", int, float)

EXAMPLES: dict[object, str] = {int: "16,24,48", float: "0,0.25,0.5"}


def numbers_in(text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """Return the numbers in the given order; () if `text` is not a list of finite numbers."""
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError:
        return ()
    return numbers if all(map(isfinite, numbers)) else ()


def read_numbers(option: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """Return the numbers in ascending order without repetitions. Raise UserError for other text."""
    numbers = tuple(sorted(set(numbers_in(text, kind))))
    if not numbers:
        raise UserError(
            f"{option} {text} is no list of numbers.", f"Write it like {option} {EXAMPLES[kind]}."
        )
    return numbers


def listed(numbers: tuple[float, ...]) -> str:
    """Return numbers as they are written after an option."""
    return ",".join(f"{number:g}" for number in numbers)
