"""The option --schedule default: the schedule in the package for each method. No torch.

`accelssl schedule` wrote schedules/ALGO.json, which also states the runs and data of the
measurement.
"""

from dataclasses import replace
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from accelssl.train.config.schedule import Schedule, read_schedule

SHIPPED: Traversable = files("accelssl.train") / "schedules"


def default_schedule(algo: str, folder: Traversable = SHIPPED) -> Schedule:
    """Return the default schedule of a method."""
    with as_file(folder / f"{algo}.json") as path:
        origin = f"the default schedule of {algo} (--schedule default)"
        return replace(read_schedule(path), origin=origin)
