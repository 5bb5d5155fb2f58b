"""A timm VisionTransformer with tokens as input.

Shapes: N views, L kept patches, P tokens before them (CLS first), S patches in the grid, V = 768
values a token, D width.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from accelssl.model.cls_block import cls_row
from accelssl.model.drop_path import DropPath, drop_paths
from accelssl.model.fused_block import every_row, no_branch
from accelssl.model.positions import BASE_SIDE, positions, positions_on, resampled
from accelssl.model.residual import Branch
from accelssl.model.timm_vit import create_vit


class Encoder(nn.Module):
    """An encoder from tokens to CLS features around `vit`, a timm VisionTransformer.

    The state dict is timm's. The encoder is built for 224 px: vit.pos_embed holds the positions of
    14 x 14 patches, so timm's own forward agrees at p = 16. Positions are fixed sin-cos, taken at
    scaled coordinates for other grids (positions.py), and weights start as in MoCo-v3's ViTs. With
    learns_positions, positions are a trained table, stretched for other grids, and weights start
    as in DINO's ViTs. The patch projection stays frozen at its random start unless
    freeze_patch_embed is False (Chen et al., ICCV 2021, section 4). drop_path is the last block's
    rate of stochastic depth; the rates of the other blocks rise to this rate from 0.

    The constructor raises UserError for a name unknown to timm or an unsupported model: see
    timm_vit.
    """

    def __init__(
        self,
        name: str,
        freeze_patch_embed: bool = True,
        *,
        learns_positions: bool = False,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.vit = _create(name, drop_path)
        self._every_row: Callable[[nn.Module, Tensor, Branch], tuple[Tensor, Branch]] = every_row
        self._cls_row: Callable[[nn.Module, Tensor, Branch], Tensor] = cls_row
        self._placed: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _placed
        self.width: int = self.vit.embed_dim
        self._learns_positions = learns_positions
        (_start_as_dino if learns_positions else _start_as_moco)(self.vit)
        self.vit.patch_embed.proj.requires_grad_(not freeze_patch_embed)

    def forward(self, values_NLV: Tensor, keep_idx_NL: Tensor, p: int, grid: int) -> Tensor:
        """Return features_ND: the CLS token after the final norm.

        keep_idx_NL gives each token's place among the grid x grid patches of side p.
        """
        vit = self.vit
        kernel = vit.patch_embed.proj
        x = F.linear(values_NLV, kernel.weight.flatten(1), kernel.bias)
        prefix = torch.cat([t for t in (vit.cls_token, vit.reg_token) if t is not None], dim=1)
        if self._learns_positions:
            of_prefix, table_SD = self._learned_positions()
            x = x + F.embedding(keep_idx_NL, resampled(table_SD, grid))
            x = _after(prefix + of_prefix if len(of_prefix) else prefix, x)
        else:
            table_SD = positions_on(grid, p, self.width, x.device)
            x = self._placed(x, table_SD, keep_idx_NL, prefix)
        x = vit.norm_pre(x)
        *blocks, last = vit.blocks
        branch = no_branch(vit.blocks[0], x)
        for block in blocks:
            x, branch = self._every_row(block, x, branch)
        features_ND: Tensor = vit.norm(self._cls_row(last, x, branch))[:, 0]
        return features_ND

    def _learned_positions(self) -> tuple[Tensor, Tensor]:
        """Return vit.pos_embed in two parts: prefix tokens and patches.

        The part of the prefix tokens exists if pos_embed covers those tokens.
        """
        table = _parameter(self.vit.pos_embed)[0]
        before = len(table) - self.vit.patch_embed.num_patches
        return table[:before], table[before:]

    def leave_out_drop_path(self) -> None:
        """Disable stochastic depth in training mode too: every sample passes every block."""
        for owner, name in drop_paths(self.vit):
            setattr(owner, name, nn.Identity())

    def compile_blocks(self) -> None:
        """Compile the blocks, each number of tokens separately.

        One compilation serves all blocks but the last. Fixed positions are compiled too. Learned
        positions are not: compiled code sums their gradient in an order that changes between runs.
        """
        self._every_row = torch.compile(every_row, dynamic=False)
        self._cls_row = torch.compile(cls_row, dynamic=False)
        self._placed = torch.compile(_placed, dynamic=False)


def _placed(x_NLD: Tensor, table_SD: Tensor, keep_idx_NL: Tensor, prefix_1PD: Tensor) -> Tensor:
    """Return the prefix tokens, then the patches, all with positions added: (N, P + L, D)."""
    return _after(prefix_1PD, x_NLD + table_SD[keep_idx_NL])


def _after(prefix_1PD: Tensor, x_NLD: Tensor) -> Tensor:
    prefix_NPD = prefix_1PD.expand(len(x_NLD), -1, -1).to(x_NLD.dtype)
    return torch.cat([prefix_NPD, x_NLD], dim=1)


def _create(name: str, drop_path: float) -> VisionTransformer:
    vit = create_vit(name, drop_path)
    if drop_path:
        for owner, place in drop_paths(vit):
            setattr(owner, place, DropPath(getattr(getattr(owner, place), "drop_prob", 0.0)))
    return vit


@torch.no_grad()
def _start_as_dino(vit: VisionTransformer) -> None:
    """Initialise as DINO: truncated normals of deviation .02, biases 0.

    Source: facebookresearch/dino, vision_transformer.py, whose patch projection starts uniform
    with nearly this deviation.
    """
    kernel = vit.patch_embed.proj
    for module in [m for m in vit.modules() if isinstance(m, nn.Linear)] + [kernel]:
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    for token in (vit.cls_token, vit.reg_token, vit.pos_embed):
        if token is not None:
            nn.init.trunc_normal_(token, std=0.02)


@torch.no_grad()
def _start_as_moco(vit: VisionTransformer) -> None:
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
    """Return a parameter whose presence _create has checked."""
    assert found is not None
    return found
