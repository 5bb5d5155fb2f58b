"""AdamW and the learning rate as a function of progress."""

import torch
from torch import nn


def learning_rate(progress: float, peak: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the budget, then peak (1 - t^2).

    t runs from 0 to 1 over the rest, so the rate stays high for long: .9375, .75 and .4375 of the
    peak at t = .25, .5 and .75 (paper, section 5; the formula, not torch's polynomial decay).
    """
    if progress < warmup:
        return peak * progress / warmup
    t = (progress - warmup) / (1 - warmup)
    return peak * (1 - t * t)


def adamw(
    module: nn.Module, weight_decay: float, *, decays_vectors: bool = False
) -> torch.optim.AdamW:
    """AdamW over the trained parameters.

    No weight decay on biases, norms and other vectors, unless decays_vectors.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    of_vectors = weight_decay if decays_vectors else 0.0
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": of_vectors},
    ]
    device = next(module.parameters()).device
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=0.0)
    # A tensor, since a captured graph of the step cannot take another number.
    rate = torch.zeros((), device=device)
    optimizer = torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)

    def share_rate(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate

    optimizer.register_load_state_dict_post_hook(share_rate)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
