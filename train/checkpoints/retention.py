"""Which checkpoints of a run stay beside the last: the latest few, and those at given shares."""

import re
from collections.abc import Iterable
from pathlib import Path

from accelssl.errors import UserError
from accelssl.train.config.number_lists import numbers_in

_NUMBERED = re.compile(r"checkpoint-(\d+)\.pt")


def read_shares(text: str) -> tuple[float, ...]:
    """'0,.25,1' as shares of the budget, ascending. UserError when it is anything else."""
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
    """As a checkpoint's name has it."""
    return f"{share:g}"


def passed(shares: Iterable[float], before: float, now: float) -> list[float]:
    """Those above the progress `before` that `now` has reached."""
    return [share for share in shares if before < share <= now]


def names(step: int, latest: int, shares: Iterable[float]) -> list[str]:
    """What the checkpoint of a step is called beside checkpoint.pt, having reached `shares`."""
    numbered = [f"checkpoint-{step}.pt"] if latest else []
    return numbered + [f"checkpoint-at-{_told(share)}.pt" for share in shares]


def remove_old(run: Path, latest: int) -> None:
    """Leave the `latest` numbered checkpoints of a run; all of them for 0."""
    numbered = {int(m[1]): path for path in run.iterdir() if (m := _NUMBERED.fullmatch(path.name))}
    for step in sorted(numbered)[:-latest] if latest else []:
        numbered[step].unlink(missing_ok=True)
