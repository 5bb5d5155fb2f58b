"""SIGTERM and Ctrl-C end a run after the step at hand, so that a checkpoint can be written."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """`signal` is 0 until one has arrived; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return self.signal != 0


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Catches SIGTERM and SIGINT inside the block (main thread only)."""
    caught = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.signal = number

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
