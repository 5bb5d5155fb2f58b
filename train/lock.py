"""One process a run folder: a lock that the kernel drops with the process, however it dies."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accelssl.errors import UserError
from accelssl.pipeline.folder_lock import lock_or_refuse

LOCK = "lock"


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Holds RUN/lock for the block. UserError when another process holds it.

    Makes the folder if need be, and takes lock and folder away again if nothing was written to it;
    UserError when it cannot be made.
    """
    made = [folder for folder in (run, *run.parents) if not folder.exists()]
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = (run / LOCK).open("w")
    except OSError as error:
        raise UserError(
            f"{run} cannot be written ({error.strerror}).", "Name another --out."
        ) from error
    with file:
        refusal = UserError(
            f"Another process is training in {run}.",
            "Wait until it is done, or name another folder with --out.",
        )
        lock_or_refuse(file.fileno(), refusal)
        try:
            yield
        finally:
            if [path.name for path in run.iterdir()] == [LOCK]:
                (run / LOCK).unlink()
                with suppress(OSError):  # somebody else may have put something there
                    for folder in made:
                        folder.rmdir()
