"""Locks for one process at a time, which the kernel drops when the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelssl.errors import UserError


def lock_or_refuse(descriptor: int, refusal: UserError) -> None:
    """Lock an open file or folder until it is closed. Raise the refusal if it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise refusal from None


@contextmanager
def exclusive_folder(folder: Path, refusal: UserError) -> Iterator[None]:
    """Lock a folder itself, without a lock file. Raise OSError if it cannot be opened."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock_or_refuse(descriptor, refusal)
        yield
    finally:
        os.close(descriptor)
