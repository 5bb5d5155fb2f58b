"""Files that are there whole or, after an error or a kill, as they were before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from accelssl.errors import UserError


@contextmanager
def whole_file(path: Path, partial: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write; the file replaces `path` when the block ends.

    Until then it is `partial`, by default path's name and .part beside it. An exception, of the
    block or of the disk, removes that and is raised on.
    """
    partial = partial or path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except Exception:
        with suppress(OSError):
            partial.unlink()
        raise


def refuse_existing(path: Path, replaces: bool) -> None:
    """Raise UserError for an existing file, unless it is to be replaced."""
    if path.exists() and not replaces:
        raise UserError(f"{path} exists already.", "Add --force to replace it, or name another.")


def write_whole(path: Path, text: str) -> None:
    """Write a small file in UTF-8."""
    with whole_file(path) as file:
        file.write(text.encode())
