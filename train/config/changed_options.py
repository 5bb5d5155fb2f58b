"""Refusal of options that differ between the start of a run and its resume. No torch.

Each message names the option, because a run with another value is another run.
"""

from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of, with_dashes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.number_lists import listed

_OR_RESTART = ", add --restart-epoch to change it where an epoch begins"


def refuse_changes(config: TrainConfig, options: dict[str, Any]) -> None:
    """Raise UserError if a given option (not None) differs from the run to be resumed."""
    for name, value in options.items():
        refuse_change(name, getattr(config, name), value)


def refuse_change(name: str, stored: object, value: object) -> None:
    """Raise UserError if `value` is given (not None) and differs from the stored value."""
    if value is None or value == stored:
        return
    option = option_of(name)
    had = f"{option} {_shown(stored)}"
    if option != with_dashes(name):
        had += f" ({name} in its config.json)"
    what = f"with {had}, not {_shown(value)}"
    if isinstance(stored, bool):
        what = f"{'with' if stored else 'without'} {option}"
    raise another_run(what, option, _OR_RESTART if name == "batch" else "")


def another_run(what: str, option: str, or_else: str = "") -> UserError:
    """Return the error for an option that differs. what: how the run was started ("with ...")."""
    return UserError(
        f"The run was started {what}.",
        f"Leave {option} out to resume{or_else}, or start another run with another --out.",
    )


def _shown(value: object) -> str:
    """Return a value as it is written after an option."""
    return listed(value) if isinstance(value, tuple) else f"{value}"
