"""Lists of numbers as options have them: '0,.25,.5'."""

from collections.abc import Callable
from math import isfinite
from typing import TypeVar

from accelssl.errors import UserError

T = TypeVar("T", int, float)

EXAMPLES: dict[object, str] = {int: "16,24,48", float: "0,0.25,0.5"}


def read_numbers(option: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """In ascending order, each once. UserError when `text` is anything else."""
    try:
        numbers = tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(isfinite, numbers)):
        raise UserError(
            f"{option} {text} is no list of numbers.", f"Write it like {option} {EXAMPLES[kind]}."
        )
    return numbers


def listed(numbers: tuple[float, ...]) -> str:
    """As an option has it."""
    return ",".join(f"{number:g}" for number in numbers)
