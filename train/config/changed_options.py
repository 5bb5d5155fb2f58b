"""Options that are given to go on with a run, but are not those that it was started with. No torch.

Each is refused by its own name: the run is another one then.
"""

from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of, with_dashes
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.number_lists import listed

_OR_RESTART = ", add --restart-epoch to change it where an epoch begins"


def refuse_changes(config: TrainConfig, options: dict[str, Any]) -> None:
    """UserError when a given option (not None) differs from the run that is to be resumed."""
    for name, value in options.items():
        refuse_change(name, getattr(config, name), value)


def refuse_change(name: str, stored: object, value: object) -> None:
    """UserError when `value` was given (is not None) and is not what the run has stored."""
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
    """Refuses an option that is not `what` the run to be resumed was started with, or without."""
    return UserError(
        f"The run was started {what}.",
        f"Leave {option} out to resume{or_else}, or start another run with another --out.",
    )


def _shown(value: object) -> str:
    """As it is written for an option."""
    return listed(value) if isinstance(value, tuple) else f"{value}"
