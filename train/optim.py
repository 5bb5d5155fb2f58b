"""AdamW, and its learning rate and weight decay as functions of progress."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def learning_rate(progress: float, peak: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the budget, then peak (1 - t^2).

    t runs from 0 to 1 over the rest, so the rate stays high for long: .9375, .75 and .4375 of the
    peak at t = .25, .5 and .75 (paper, section 5; the formula, not torch's polynomial decay).
    """
    if progress < warmup:
        return peak * progress / warmup
    t = (progress - warmup) / (1 - warmup)
    return peak * (1 - t * t)


def weight_decay_at(progress: float, start: float, end: float) -> float:
    """From `start` to `end` along half a cosine, as DINO schedules it."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


class AdamW(torch.optim.AdamW):
    """torch's AdamW, with a weight decay of `decaying` that goes from decay[0] to decay[1] with
    progress, and gradients clipped.

    Made by `adamw`, which says more. What changes between steps lies in tensors on a GPU, since a
    captured graph of the step cannot take another number.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        device: torch.device,
        decaying: Sequence[nn.Parameter] = (),
        decay: tuple[float, float] = (0.0, 0.0),
        clip: float = 0.0,
    ) -> None:
        if device.type == "cuda":
            rate = torch.zeros((), device=device)
            super().__init__(groups, lr=rate, fused=True, capturable=True)
            self.register_load_state_dict_post_hook(partial(_share_rate, rate))
        else:
            super().__init__(groups, lr=0.0)
        self._decaying, self._decay, self._clip = tuple(decaying), decay, clip
        self._shrink = torch.ones((), device=device)  # what decayed parameters are multiplied by

    def prepare(self, rate: float, progress: float) -> None:
        """Let the next step have learning rate `rate`, and the weight decay at `progress`."""
        set_learning_rate(self, rate)
        if self._decaying:
            self._shrink.fill_(1 - rate * weight_decay_at(progress, *self._decay))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As torch's. A parameter without gradient neither moves nor decays."""
        if self._clip:
            parameters = [p for group in self.param_groups for p in group["params"]]
            clip_each([p.grad for p in parameters if p.grad is not None], self._clip)
        if self._decaying:
            moving: list[Tensor] = [p for p in self._decaying if p.grad is not None]
            torch._foreach_mul_(moving, self._shrink)
        return super().step(closure)


def _share_rate(rate: Tensor, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_each(gradients: list[Tensor], most: float) -> None:
    """Scale down, in place, each gradient whose own norm is above `most`, as DINO does instead of
    using the norm of all (facebookresearch/dino, utils.py). Does not wait for the device."""
    norms = torch.stack(torch._foreach_norm(gradients))
    scales = (most / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(scales.unbind()))


def adamw(
    module: nn.Module,
    weight_decay: float,
    *,
    decays_vectors: bool = False,
    final_weight_decay: float | None = None,
    clip: float = 0.0,
) -> AdamW:
    """AdamW over the trained parameters.

    No weight decay on biases, norms and other vectors, unless decays_vectors. With
    final_weight_decay, it goes from weight_decay to there with progress. clip: the largest norm of
    a parameter's gradient, 0 for any.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    device = next(module.parameters()).device
    if final_weight_decay is not None:
        groups = [{"params": params, "weight_decay": 0.0} for params in (matrices, vectors)]
        decaying = trained if decays_vectors else matrices
        return AdamW(groups, device, decaying, (weight_decay, final_weight_decay), clip)
    of_vectors = weight_decay if decays_vectors else 0.0
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": of_vectors},
    ]
    return AdamW(groups, device, clip=clip)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
