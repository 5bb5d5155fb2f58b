"""Complete configurations of each method (train/methods). `options` override single settings."""

from functools import partial
from typing import Any

from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule
from accelssl.train.methods.method import method_named


def usual(
    algo: str, model: str, data: str, budget: float, schedule: Schedule, **options: Any
) -> TrainConfig:
    """Build the configuration of a method with the settings of its authors."""
    settings = method_named(algo).recipe(options)
    return TrainConfig(algo, model, data, budget, schedule, **(settings | options))


simclr, moco, dino = (partial(usual, algo) for algo in ("simclr", "moco", "dino"))
