"""The key encoder: an average over the past of the query encoder, not trained itself."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn


def momentum_at(progress: float, start: float) -> float:
    """From `start` at progress 0 to 1 at progress 1, along half a cosine.

    1 - (1 - start) (1 + cos(pi progress)) / 2, as MoCo-v3 and DINO schedule it.
    """
    return 1 - (1 - start) * (1 + math.cos(math.pi * progress)) / 2


class MovingAverage(nn.Module):
    """A copy of a module that follows it: average <- m average + (1 - m) followed.

    m goes from `momentum` to 1 with progress (`set_progress`). Parameters alone are averaged, in
    their own precision: float32, whatever autocast does. Batch norms have no average of the
    followed one's statistics but their own, from their own forward passes in training mode, as in
    MoCo-v3 (facebookresearch/moco-v3, moco/builder.py). Parameters that are frozen in the followed
    module are copies already. Nothing here requires a gradient, so that neither the optimiser nor
    DistributedDataParallel sees it; every rank computes the same.
    """

    share: Tensor

    def __init__(self, followed: nn.Module, momentum: float) -> None:
        super().__init__()
        self.average = copy.deepcopy(followed).requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("share", torch.zeros(()), persistent=False)
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Let the next `follow` use the momentum at `progress`, also one in a CUDA graph."""
        self.share.fill_(1 - momentum_at(progress, self.momentum))

    @torch.no_grad()
    def follow(self, followed: nn.Module) -> None:
        """One step towards the parameters of `followed` as they are now."""
        pairs = zip(self.average.parameters(), followed.parameters(), strict=True)
        for average, current in pairs:
            if current.requires_grad:
                average.lerp_(current, self.share)  # at share 0 exactly itself

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.average(*inputs)
        return output
