"""--schedule default: the schedule that comes with the package for a method. No torch.

schedules/ALGO.json is what `accelssl schedule` wrote, with what it was measured on.
"""

from dataclasses import replace
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from accelssl.train.config.schedule import Schedule, read_schedule

SHIPPED: Traversable = files("accelssl.train") / "schedules"


def default_schedule(algo: str, folder: Traversable = SHIPPED) -> Schedule:
    """The default of a method."""
    with as_file(folder / f"{algo}.json") as path:
        origin = f"the default schedule of {algo} (--schedule default)"
        return replace(read_schedule(path), origin=origin)
