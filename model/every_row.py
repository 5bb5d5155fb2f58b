"""A transformer block whose attention is made for few tokens, and whose GELU is one pass each way.

Shapes: N views, L tokens with CLS first, D width, C that of what a block's projection puts out: 3 D
for attention, that of the hidden layer for the MLP.
"""

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from accelssl.model.cls_row import is_plain
from accelssl.model.gelu import fits as gelu_fits
from accelssl.model.gelu import gelu
from accelssl.model.short_attention import fits, short_attention


def every_row(block: nn.Module, x_NLD: Tensor, branch_NLD: Tensor) -> tuple[Tensor, Tensor]:
    """block(x_NLD + branch_NLD) as a new x_NLD and branch_NLD, yet to be added to it.

    The branch is what the block before has computed last. Compiled, a sum at a block's end would be
    a pass of its own each way; at the next one's beginning it is part of the pass that norms x.
    short_attention and gelu stand in the place of the block's own where those fit. Values and
    gradients are the block's, to rounding. Blocks that are not timm's plain Block with plain
    Attention run as they are, and leave zeros to add.
    """
    x_NLD = x_NLD + branch_NLD
    if not is_plain(block):
        return block(x_NLD), torch.zeros_like(branch_NLD)
    assert isinstance(block, Block) and isinstance(block.attn, Attention)
    attended_NLD = _attended(block.attn, block.norm1(x_NLD))
    x_NLD = x_NLD + block.drop_path1(block.ls1(attended_NLD))
    return x_NLD, block.drop_path2(block.ls2(_mlp(block.mlp, block.norm2(x_NLD))))


def no_branch(block: nn.Module, x_NLD: Tensor) -> Tensor:
    """Zeros for the first block to add: in all but their values what `block` leaves to the next.

    So the first block is the same program as the others, compiled once for all, which is worth the
    pass more. It takes their dtype, and a gradient wherever theirs have one, though nobody reads
    it: else it would be another program.
    """
    is_scaled = not isinstance(getattr(block, "ls2", None), nn.Identity)  # by weights in x's dtype
    dtype = x_NLD.dtype if is_scaled else _dtype_of_products(x_NLD)
    wants_gradient = x_NLD.requires_grad and is_plain(block)
    return torch.zeros_like(x_NLD, dtype=dtype, requires_grad=wants_gradient)


def _attended(attention: Attention, x_NLD: Tensor) -> Tensor:
    if not _fits(attention, x_NLD):
        whole_NLD: Tensor = attention(x_NLD)
        return whole_NLD
    rows_NLD = short_attention(attention.qkv(x_NLD), attention.num_heads)
    attended_NLD: Tensor = attention.proj_drop(attention.proj(rows_NLD))
    return attended_NLD


def _fits(attention: Attention, x_NLD: Tensor) -> bool:
    between = attention.q_norm, attention.k_norm, getattr(attention, "norm", nn.Identity())
    if attention.attn_drop.p > 0 or not all(isinstance(m, nn.Identity) for m in between):
        return False
    head_width = attention.qkv.out_features // (3 * attention.num_heads)
    return fits(x_NLD.shape[1], head_width, x_NLD.device, _dtype_of_products(x_NLD))


def _mlp(mlp: nn.Module, x_NLD: Tensor) -> Tensor:
    if not (_has_plain_gelu(mlp) and _gelu_fits(mlp, x_NLD)):
        whole_NLD: Tensor = mlp(x_NLD)
        return whole_NLD
    assert isinstance(mlp, Mlp) and isinstance(mlp.fc1, nn.Linear)
    bias_C = mlp.fc1.bias  # whose gradient is gelu's to give
    a_NLC = gelu(F.linear(x_NLD, mlp.fc1.weight, bias_C.detach()), bias_C)
    out_NLD: Tensor = mlp.drop2(mlp.fc2(mlp.norm(mlp.drop1(a_NLC))))
    return out_NLD


def _has_plain_gelu(mlp: nn.Module) -> bool:
    """Whether it is timm's Mlp, its first layer with a bias, its activation GELU without a tanh."""
    if type(mlp) is not Mlp or type(mlp.fc1) is not nn.Linear or mlp.fc1.bias is None:
        return False
    return type(mlp.act) is nn.GELU and mlp.act.approximate == "none"


def _gelu_fits(mlp: nn.Module, x_NLD: Tensor) -> bool:
    assert isinstance(mlp, Mlp) and isinstance(mlp.fc1, nn.Linear)
    values = x_NLD.shape[:-1].numel() * mlp.fc1.out_features
    return gelu_fits(values, x_NLD.device, _dtype_of_products(x_NLD))


def _dtype_of_products(x_NLD: Tensor) -> torch.dtype:
    device = x_NLD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_NLD.dtype
