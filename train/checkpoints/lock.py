"""Lock that admits one process to a run folder. The kernel releases it when the process ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accelssl.errors import UserError
from accelssl.folder_lock import lock_or_refuse

LOCK = "lock"


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Hold RUN/lock for the block. Raise UserError if another process holds the lock.

    Create the folder if it is missing; raise UserError if this fails. At the end remove a new lock
    and new folders if the block has written nothing else.
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
                with suppress(OSError):  # another process may have written files there
                    for folder in made:
                        folder.rmdir()
