"""One process a run folder: a lock that the kernel drops with the process, however it dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelssl.errors import UserError


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Holds RUN/lock for the block. UserError when another process holds it.

    Makes the folder if need be; UserError when that is impossible.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = (run / "lock").open("w")
    except OSError as error:
        raise UserError(f"{run} cannot be written ({error}).", "Name another --out.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another process is training in {run}.",
                "Wait until it is done, or name another folder with --out.",
            ) from None
        yield
