"""What one has, dealt to several that take it at paces of their own."""

from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import TypeVar

T = TypeVar("T")


def dealt(things: Iterator[T], hands: int) -> list[Iterator[T]]:
    """For each hand the things whose turn it has, one in `hands`. Who asks before its turn puts
    what comes first by for the others."""
    waiting: list[deque[T]] = [deque() for _ in range(hands)]
    turns = cycle(waiting)

    def of(mine: deque[T]) -> Iterator[T]:
        while True:
            while not mine:
                try:
                    thing = next(things)
                except StopIteration:
                    return
                next(turns).append(thing)
            yield mine.popleft()

    return [of(mine) for mine in waiting]
