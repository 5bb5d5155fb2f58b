"""Stochastic depth: in training, a block's branch is dropped for some samples.

Shapes: N views, L tokens, D width.
"""

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """A module that zeroes branch_NLD for a share `rate` of the samples.

    The other samples are divided by 1 - rate. Samples are drawn from torch's global generator
    (Huang et al., ECCV 2016). timm's DropPath does the same, but here the share is a tensor. So
    blocks of one shape share one compiled program, although deeper blocks have a higher rate.
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
    """Return the drop-path modules of timm's blocks as (owner, name), also Identity for rate 0."""
    return [
        (owner, name)
        for owner in module.modules()
        for name, _ in owner.named_children()
        if name.startswith("drop_path")
    ]
