"""From a configuration to the module that computes its loss."""

import torch

from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.train.config.config import TrainConfig


def build(config: TrainConfig) -> Objective:
    """The objective with its initial weights, a function of the configuration and its seed alone.

    Leaves torch's global generator as it was. UserError when timm has no such model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.algo == "moco":
            return MoCo(
                config.model,
                head_hidden=config.head_hidden,
                head_out=config.head_out,
                temperature=config.temperature,
                momentum=config.momentum,
            )
        if config.algo == "dino":
            return DINO(
                config.model,
                mode=config.mode,
                head_hidden=config.head_hidden,
                head_out=config.head_out,
                prototypes=config.prototypes,
                temperature=config.temperature,
                teacher_temp=(config.teacher_temp_start, config.teacher_temp),
                teacher_warmup=config.teacher_warmup,
                momentum=config.momentum,
                frozen_last=config.frozen_last,
                drop_path=config.drop_path,
            )
        return SimCLR(
            config.model,
            head_hidden=config.head_hidden,
            head_out=config.head_out,
            temperature=config.temperature,
        )
