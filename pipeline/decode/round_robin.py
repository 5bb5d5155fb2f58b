"""Distribute the items of one iterator to several takers in turn."""

from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import TypeVar

T = TypeVar("T")


def round_robin(items: Iterator[T], takers: int) -> list[Iterator[T]]:
    """Return an iterator for each taker: taker i gets items i, i + takers, i + 2 takers, ...

    Takers may advance at different rates: items of the others wait in queues.
    """
    queues: list[deque[T]] = [deque() for _ in range(takers)]
    turns = cycle(queues)

    def items_of(queue: deque[T]) -> Iterator[T]:
        while True:
            while not queue:
                try:
                    item = next(items)
                except StopIteration:
                    return
                next(turns).append(item)
            yield queue.popleft()

    return [items_of(queue) for queue in queues]
