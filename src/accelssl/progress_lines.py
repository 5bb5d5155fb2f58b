"""Progress of a long command on standard error: shown on a terminal, where nobody
looks on a line every half minute."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

LINE_EVERY_S = 30.0
Item = TypeVar("Item")


def line_is_due() -> Callable[[], bool]:
    """Return a function that returns True at most once in LINE_EVERY_S."""
    said_s = time.monotonic()

    def is_due() -> bool:
        nonlocal said_s
        if time.monotonic() - said_s < LINE_EVERY_S:
            return False
        said_s = time.monotonic()
        return True

    return is_due


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each step that begins."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    doing, began_s, has_ended = "starting", time.monotonic(), threading.Event()

    def hear(what: str) -> None:
        nonlocal doing
        doing = what

    def tell() -> None:
        while not has_ended.wait(LINE_EVERY_S):
            _say(f"{doing} ({time.monotonic() - began_s:.0f} s so far)")

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield hear
    finally:
        has_ended.set()


def told(items: Iterable[Item], what: str, total: int, shown: bool = True) -> Iterator[Item]:
    """Yield the items and show their count; `total` is the number of items."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal or not shown:
        yield from track(items, what, total, console=console, disable=not shown)
        return
    began_s, is_due = time.monotonic(), line_is_due()
    for count, item in enumerate(items):
        if count and is_due():
            left_s = (time.monotonic() - began_s) / count * (total - count)
            _say(f"{what}: {count:,} of {total:,}, {left_s:.0f} s left")
        yield item


def _say(line: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        print(line, file=sys.stderr, flush=True)
