"""Batches in parts, dealt to those that take them at paces of their own."""

from collections import deque
from collections.abc import Iterator
from typing import Any


def dealt(
    batches: Iterator[list[tuple[Any, ...]]], decoders: int
) -> list[Iterator[tuple[Any, ...]]]:
    """For each decoder its parts. Unlike itertools.tee, nothing stays that all have taken."""
    waiting: list[deque[tuple[Any, ...]]] = [deque() for _ in range(decoders)]

    def parts_of(mine: deque[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        while True:
            while not mine:
                parts = next(batches, None)
                if parts is None:
                    return
                for others, part in zip(waiting, parts, strict=False):
                    others.append(part)
            yield mine.popleft()

    return [parts_of(mine) for mine in waiting]
