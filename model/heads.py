"""Projection heads.

Shapes: N rows on this rank, D width, E projected width, K prototypes.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from accelssl.model.batch_norm import GlobalBatchNorm1d


def normalised(z_NE: Tensor) -> Tensor:
    """Return the rows scaled to length 1, in float32 at least."""
    return F.normalize(z_NE.to(torch.promote_types(z_NE.dtype, torch.float32)), dim=1)


class ProjectionHead(nn.Module):
    """SimCLR's head for ViTs: three linear layers without bias, each followed by batch norm.

    features_ND -> hidden -> hidden -> z_NE, ReLU between; the last norm has a scale but no shift
    (ronghanghu/moco_v3_tpu, models.py; SimCLR's model_util.py has no centre there either).
    """

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        last_norm = GlobalBatchNorm1d(out)
        last_norm.bias.requires_grad_(False)
        self.layers = nn.Sequential(
            *_hidden_layer(width, hidden),
            *_hidden_layer(hidden, hidden),
            nn.Linear(hidden, out, bias=False),
            last_norm,
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, features_ND: Tensor) -> Tensor:
        z_NE: Tensor = self.layers(features_ND)
        return z_NE


def moco_head(layers: int, width: int, hidden: int, out: int) -> nn.Sequential:
    """Return MoCo-v3's head for ViTs: linear layers without bias, each followed by batch norm.

    rows of `width` -> hidden (layers - 1 times, with ReLU) -> z_NE, E = `out`; the last norm has
    neither scale nor shift. Weights keep torch's initial values (facebookresearch/moco-v3,
    moco/builder.py).
    """
    sides = [width] + [hidden] * (layers - 1)
    hidden_layers = [module for pair in pairwise(sides) for module in _hidden_layer(*pair)]
    last = nn.Linear(sides[-1], out, bias=False)
    return nn.Sequential(*hidden_layers, last, GlobalBatchNorm1d(out, affine=False))


class PrototypeHead(nn.Module):
    """DINO's head: features_ND -> hidden -> hidden -> z_NE -> logits_NK, E = `bottleneck`.

    GELU runs between the layers; there is no batch norm. The head normalises z and multiplies z by
    K prototypes. Prototypes are the rows of a layer without bias, normalised too; their lengths are
    1 and not trained. Logits are cosines. Weights are truncated normals of deviation .02, biases 0,
    prototypes have torch's initial values of a layer (facebookresearch/dino,
    vision_transformer.py).
    """

    def __init__(self, width: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = weight_norm(nn.Linear(bottleneck, prototypes, bias=False))
        lengths = self.prototypes.get_parameter("parametrizations.weight.original0")
        nn.init.ones_(lengths).requires_grad_(False)

    def forward(self, features_ND: Tensor) -> Tensor:
        z_NE = self.layers(features_ND)
        z_NE = z_NE.to(torch.promote_types(z_NE.dtype, torch.float32))  # lengths, under autocast
        logits_NK: Tensor = self.prototypes(F.normalize(z_NE, dim=1))
        return logits_NK


def _hidden_layer(fan_in: int, fan_out: int) -> tuple[nn.Module, ...]:
    return nn.Linear(fan_in, fan_out, bias=False), GlobalBatchNorm1d(fan_out), nn.ReLU(inplace=True)
