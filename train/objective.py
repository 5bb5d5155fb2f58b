"""Construction of the objective, the module that computes the loss of a configuration."""

import torch

from accelssl.model.objective import Objective
from accelssl.train.config.config import TrainConfig


def build(config: TrainConfig) -> Objective:
    """Return the objective with its initial weights, which depend only on the configuration.

    Keep the state of torch's global generator. Raise UserError if timm does not have the model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return config.method.objective(config.model)
