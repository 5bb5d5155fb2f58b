"""Stochastic depth: while training, a block's branch is left out for some samples.

Shapes: N views, L tokens, D width.
"""

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """branch_NLD -> the same, 0 for a share `rate` of the samples, the others divided by 1 - rate.

    Drawn for each sample from torch's global generator (Huang et al., ECCV 2016). As timm's module
    of this name, but the share is a tensor: compiled blocks of one shape are then one program,
    although deeper blocks are left out more often.
    """

    kept: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("kept", torch.tensor(1 - rate), persistent=False)

    def forward(self, branch_NLD: Tensor) -> Tensor:
        if not self.training:
            return branch_NLD
        shape = (len(branch_NLD), *[1] * (branch_NLD.ndim - 1))
        drawn = torch.rand(shape, device=branch_NLD.device)
        return branch_NLD * ((drawn < self.kept) / self.kept).to(branch_NLD.dtype)


def drop_paths(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Where timm's blocks have one, of rate 0 (an Identity) or more: as (owner, name)."""
    return [
        (owner, name)
        for owner in module.modules()
        for name, _ in owner.named_children()
        if name.startswith("drop_path")
    ]
