"""One process a run folder: a lock that the kernel drops with the process, however it dies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelssl.errors import UserError
from accelssl.pipeline.folder_lock import lock_or_refuse


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
        refusal = UserError(
            f"Another process is training in {run}.",
            "Wait until it is done, or name another folder with --out.",
        )
        lock_or_refuse(file.fileno(), refusal)
        yield
