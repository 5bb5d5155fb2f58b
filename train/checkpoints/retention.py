"""Choice of the checkpoints to keep besides the last: the latest few, and some at given shares."""

import re
from collections.abc import Iterable
from pathlib import Path

from accelssl.errors import UserError
from accelssl.train.config.number_lists import numbers_in

_NUMBERED = re.compile(r"checkpoint-(\d+)\.pt")


def read_shares(text: str) -> tuple[float, ...]:
    """Parse '0,.25,1' into ascending shares of the budget. Raise UserError for any other text."""
    shares = sorted(set(numbers_in(text, float)))
    if len(set(map(_told, shares))) < len(shares):
        raise UserError(
            f"--keep-at {text} has shares that are the same to six digits.", "Give one of them."
        )
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise UserError(
            f"--keep-at {text} is no list of shares.", "Give some from 0 to 1: --keep-at 0,.25,.5,1"
        )
    return tuple(shares)


def _told(share: float) -> str:
    """Return a share as it is written in the name of a checkpoint."""
    return f"{share:g}"


def passed(shares: Iterable[float], before: float, now: float) -> list[float]:
    """Return the shares that are above the progress `before` and at most `now`."""
    return [share for share in shares if before < share <= now]


def names(step: int, latest: int, shares: Iterable[float]) -> list[str]:
    """Return the other names of the checkpoint of a step, after `shares` were reached."""
    numbered = [f"checkpoint-{step}.pt"] if latest else []
    return numbered + [f"checkpoint-at-{_told(share)}.pt" for share in shares]


def remove_old(run: Path, latest: int) -> None:
    """Remove all numbered checkpoints of a run except the `latest`; 0 keeps all of them."""
    numbered = {int(m[1]): path for path in run.iterdir() if (m := _NUMBERED.fullmatch(path.name))}
    for step in sorted(numbered)[:-latest] if latest else []:
        numbered[step].unlink(missing_ok=True)
