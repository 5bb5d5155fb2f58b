"""--schedule default: the schedule that comes with the package for a method. No torch.

schedules/ALGO.json is what `accelssl schedule` wrote, with what it was measured on.
"""

from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from accelssl.errors import UserError
from accelssl.train.schedule import Schedule, read_schedule

SHIPPED: Traversable = files("accelssl.train") / "schedules"


def default_schedule(algo: str, folder: Traversable = SHIPPED) -> Schedule:
    """The default of a method. UserError where there is none yet."""
    found = folder / f"{algo}.json"
    if not found.is_file():
        raise UserError(
            f"There is no default schedule for {algo} yet.",
            "Use --patch and --drop, --schedule FILE with one that accelssl schedule has made of "
            "an analysis, or, to train, --schedule auto.",
        )
    with as_file(found) as path:
        return read_schedule(path)
