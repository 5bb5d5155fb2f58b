"""A timm VisionTransformer fed by tokens. With cls_row.py and every_row.py all that imports timm.

Shapes: N views, L kept patches, V = 768 values a token, D width.
"""

import math
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.model.cls_row import cls_row
from accelssl.model.every_row import every_row
from accelssl.model.positions import BASE_SIDE, positions, positions_on


class Encoder(nn.Module):
    """`vit`, a timm VisionTransformer whose state dict stays timm's, from tokens to CLS features.

    Built for 224 px. Positions are fixed sin-cos and, for any grid, taken at scaled coordinates
    (positions.py), so vit.pos_embed holds their 14 x 14 case and timm's own forward agrees at
    p = 16. Initialised as MoCo-v3 initialises its ViTs; the patch projection stays frozen at its
    random start unless freeze_patch_embed is False (Chen et al., ICCV 2021, section 4).

    Raises UserError for a name timm does not know or a model that is no 16-pixel VisionTransformer
    with a CLS token.
    """

    def __init__(self, name: str, freeze_patch_embed: bool = True) -> None:
        super().__init__()
        self.vit = _create(name)
        self._every_row: Callable[[nn.Module, Tensor], Tensor] = every_row
        self._cls_row: Callable[[nn.Module, Tensor], Tensor] = cls_row
        self.width: int = self.vit.embed_dim
        _initialise(self.vit)
        self.vit.patch_embed.proj.requires_grad_(not freeze_patch_embed)

    def forward(self, values_NLV: Tensor, keep_idx_NL: Tensor, p: int, grid: int) -> Tensor:
        """features_ND: the CLS token after the final norm.

        keep_idx_NL gives each token's place among the grid x grid patches of side p.
        """
        vit = self.vit
        kernel = vit.patch_embed.proj
        x = F.linear(values_NLV, kernel.weight.flatten(1), kernel.bias)
        x = x + positions_on(grid, p, self.width, x.device)[keep_idx_NL]
        prefix = [t for t in (vit.cls_token, vit.reg_token) if t is not None]
        x = torch.cat([t.expand(len(x), -1, -1).to(x.dtype) for t in prefix] + [x], dim=1)
        x = vit.norm_pre(x)
        *blocks, last = vit.blocks
        for block in blocks:
            x = self._every_row(block, x)
        features_ND: Tensor = vit.norm(self._cls_row(last, x))[:, 0]
        return features_ND

    def compile_blocks(self) -> None:
        """Compile the blocks, each number of tokens by itself; one compilation serves all."""
        self._every_row = torch.compile(every_row, dynamic=False)
        self._cls_row = torch.compile(cls_row, dynamic=False)


def _create(name: str) -> VisionTransformer:
    if not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{name.split('_')[0]}*patch16_224")[:3])
        raise UserError(
            f"timm has no model named {name!r}.",
            f"Use a 16-pixel VisionTransformer, for example {near or 'vit_small_patch16_224'}.",
        )
    vit = timm.create_model(name, pretrained=False, num_classes=0)
    if not (
        isinstance(vit, VisionTransformer)
        and getattr(vit, "cls_token", None) is not None
        and getattr(vit, "dist_token", None) is None
        and vit.pos_embed is not None
        and vit.patch_embed.patch_size == (BASE_SIDE, BASE_SIDE)
    ):
        raise UserError(
            f"{name} is not a VisionTransformer with 16-pixel patches, positions and a CLS token.",
            "Use for example vit_tiny_patch16_224, vit_small_patch16_224 or vit_base_patch16_224.",
        )
    return vit


@torch.no_grad()
def _initialise(vit: VisionTransformer) -> None:
    for name, module in vit.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if name.endswith("qkv"):  # as three square matrices, not one tall one
                bound = math.sqrt(6 / (module.in_features + module.out_features // 3))
                nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(_parameter(vit.cls_token), std=1e-6)
    kernel = vit.patch_embed.proj
    bound = math.sqrt(6 / (kernel.weight[0].numel() + vit.embed_dim))
    nn.init.uniform_(kernel.weight, -bound, bound)
    if kernel.bias is not None:
        nn.init.zeros_(kernel.bias)
    grid = vit.patch_embed.grid_size[0]
    table = torch.zeros_like(_parameter(vit.pos_embed))
    table[0, -(grid**2) :] = positions(grid, BASE_SIDE, vit.embed_dim)
    vit.pos_embed = nn.Parameter(table, requires_grad=False)


def _parameter(found: nn.Parameter | None) -> nn.Parameter:
    """What _create has made sure of."""
    assert found is not None
    return found
