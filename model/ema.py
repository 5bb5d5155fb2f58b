"""The key encoder: a moving average of the query encoder, without training of its own."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn


def momentum_at(progress: float, start: float) -> float:
    """Return the momentum: from `start` at progress 0 to 1 at progress 1, along half a cosine.

    The formula is 1 - (1 - start) (1 + cos(pi progress)) / 2, the schedule of MoCo-v3 and DINO.
    """
    return 1 - (1 - start) * (1 + math.cos(math.pi * progress)) / 2


class MovingAverage(nn.Module):
    """A moving average of a module: average <- m average + (1 - m) followed.

    m goes from `momentum` to 1 with progress (`set_progress`). Only parameters are averaged, in
    their own precision: float32, also under autocast. Batch norms do not average statistics of the
    followed module. They keep statistics of their own forward passes in training mode, as in
    MoCo-v3 (facebookresearch/moco-v3, moco/builder.py). Parameters that are frozen in the followed
    module are copies already. No parameter here requires a gradient, so neither the optimiser nor
    DistributedDataParallel sees the average. Every rank computes the same values.
    """

    share: Tensor

    def __init__(self, followed: nn.Module, momentum: float) -> None:
        super().__init__()
        self.average = copy.deepcopy(followed).requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("share", torch.zeros(()), persistent=False)
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Set the momentum at `progress` for the next `follow`, also inside a CUDA graph."""
        self.share.fill_(1 - momentum_at(progress, self.momentum))

    @torch.no_grad()
    def follow(self, followed: nn.Module) -> None:
        """Move the average one step towards the current parameters of `followed`."""
        pairs = zip(self.average.parameters(), followed.parameters(), strict=True)
        for average, current in pairs:
            if current.requires_grad:
                average.lerp_(current, self.share)  # at share 0 exactly itself

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.average(*inputs)
        return output
