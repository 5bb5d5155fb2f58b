"""A transformer block whose attention is made for few tokens.

Shapes: N views, L tokens with CLS first, D width.
"""

import torch
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from accelssl.model.cls_row import is_plain
from accelssl.model.short_attention import fits, short_attention


def every_row(block: nn.Module, x_NLD: Tensor) -> Tensor:
    """block(x), with short_attention in the place of its attention where that fits.

    Values and gradients are the block's, to rounding. Blocks that are not timm's plain Block with
    plain Attention run as they are.
    """
    attention = getattr(block, "attn", None)
    if not (is_plain(block) and _fits(attention, x_NLD)):
        whole_NLD: Tensor = block(x_NLD)
        return whole_NLD
    assert isinstance(block, Block) and isinstance(attention, Attention)
    rows_NLD = short_attention(attention.qkv(block.norm1(x_NLD)), attention.num_heads)
    attended_NLD = attention.proj_drop(attention.proj(rows_NLD))
    x_NLD = x_NLD + block.drop_path1(block.ls1(attended_NLD))
    out_NLD: Tensor = x_NLD + block.drop_path2(block.ls2(block.mlp(block.norm2(x_NLD))))
    return out_NLD


def _fits(attention: nn.Module | None, x_NLD: Tensor) -> bool:
    assert isinstance(attention, Attention)
    between = attention.q_norm, attention.k_norm, getattr(attention, "norm", nn.Identity())
    if attention.attn_drop.p > 0 or not all(isinstance(m, nn.Identity) for m in between):
        return False
    device, dtype = x_NLD.device, x_NLD.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    head_width = attention.qkv.out_features // (3 * attention.num_heads)
    return fits(x_NLD.shape[1], head_width, device, dtype)
