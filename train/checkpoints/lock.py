"""One process a run folder: a lock that the kernel drops with the process, however it dies."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accelssl.errors import UserError
from accelssl.folder_lock import lock_or_refuse

LOCK = "lock"


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Holds RUN/lock for the block. UserError when another process holds it.

    Makes the folder if need be, and takes folder and lock away again if they are new and nothing
    else was written; UserError when it cannot be made.
    """
    made = [folder for folder in (run, *run.parents) if not folder.exists()]
    try:
        run.mkdir(parents=True, exist_ok=True)
        before = {path.name for path in run.iterdir()}
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
            now = {path.name for path in run.iterdir()}
            if now == {LOCK} or (LOCK not in before and now == before | {LOCK}):
                (run / LOCK).unlink()
                with suppress(OSError):  # somebody else may have put something there
                    for folder in made:
                        folder.rmdir()
