"""Where a benchmark's result goes: files of one name, none of which was there before."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from accelssl.errors import UserError

_SUFFIXES = ".md", ".json", ".png"


class ResultFiles:
    """The files of one result in folder `out`, which is made now, and tried.

    Minutes of measuring later would be too late to learn that nothing can be written there. Where a
    file of that name is there already the name gets a number: earlier results stay. UserError for a
    folder that cannot be made or written.
    """

    def __init__(self, out: Path) -> None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=out):
                pass
        except OSError as error:
            raise UserError(
                f"{out} cannot be written: {error.strerror}.", "Name another folder with --out."
            ) from error
        self._folder = out
        self._page: Path | None = None

    def page(self, name: str) -> Path:
        """Where the page is to be written, as `name` if that is free; other files stand beside it,
        with other suffixes. The same at each call."""
        if self._page is None:
            first = self._folder / name
            numbered = (first.with_stem(f"{first.stem}_{number}") for number in count(2))
            self._page = first if _is_free(first) else next(filter(_is_free, numbered))
        return self._page


def _is_free(page: Path) -> bool:
    return not any(page.with_suffix(suffix).exists() for suffix in _SUFFIXES)


def try_to(write: Callable[[], object]) -> bool:
    """Write what is known so far, if it can be: a disk that is full now may not be at the end."""
    try:
        write()
    except OSError:
        return False
    return True
