"""Valid ranges of the numbers given to a sharding job."""

from collections.abc import Callable

from accelssl.errors import UserError

# Below a patch of the encoder nothing of a picture is left to see.
LEAST_SHORT_SIDE = 16

Spelling = Callable[[str], str]
"""Maps a parameter to its name for the user: `max_side`, or `--max-side`."""


def refuse_out_of_range(spelled: Spelling, **numbers: tuple[int | None, int]) -> None:
    """Raise UserError for the first (value, least) with value < least; None is always valid."""
    for name, (value, least) in numbers.items():
        if value is not None and value < least:
            raise UserError(f"{spelled(name)} is {value}.", f"Use {least} or more.")


def refuse_unusable_sides(spelled: Spelling, max_side: int | None, short_side: int | None) -> None:
    """Raise UserError for limits on sides that are too small or contradict each other."""
    refuse_out_of_range(spelled, max_side=(max_side, 1), short_side=(short_side, LEAST_SHORT_SIDE))
    if max_side is not None and short_side is not None and short_side > max_side:
        raise UserError(
            f"{spelled('short_side')} is {short_side}, more than {spelled('max_side')}, "
            f"which is {max_side}.",
            f"Use {max_side} or less, or leave one of the two out.",
        )
