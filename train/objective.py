"""From a configuration to the module that computes its loss."""

import torch

from accelssl.model.objective import Objective
from accelssl.train.config.config import TrainConfig


def build(config: TrainConfig) -> Objective:
    """The objective with its initial weights, a function of the configuration and its seed alone.

    Leaves torch's global generator as it was. UserError when timm has no such model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return config.method.objective(config.model)
