"""One process at a time: locks that the kernel drops with the process, however it dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelssl.errors import UserError


def lock_or_refuse(descriptor: int, refusal: UserError) -> None:
    """Lock an open file or folder until it is closed; raises the refusal if another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise refusal from None


@contextmanager
def exclusive_folder(folder: Path, refusal: UserError) -> Iterator[None]:
    """Hold a folder itself, which leaves no file in it. OSError when it cannot be opened."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock_or_refuse(descriptor, refusal)
        yield
    finally:
        os.close(descriptor)
