"""A transformer block with attention for short sequences and fused norms and GELU.

Each norm, with the sum before the norm, is one pass forward and one backward; so is GELU.

Shapes: N views, L tokens with CLS first, D width, C the output width of a block's projection: 3 D
for attention, the hidden layer's width for the MLP.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from accelssl.model.cls_block import attended_by_torch, has_plain_heads, is_plain
from accelssl.model.ops.gelu import fits as gelu_fits
from accelssl.model.ops.gelu import gelu
from accelssl.model.ops.short_attention import fits, short_attention
from accelssl.model.residual import (
    Branch,
    can_leave_bias,
    dtype_of_products,
    has_own_norm,
    passed,
    projected,
    summed,
    summed_and_normed,
)


def every_row(block: nn.Module, x_NLD: Tensor, branch: Branch) -> tuple[Tensor, Branch]:
    """Return block(x_NLD + branch) as a new x_NLD and a new branch that is not yet added.

    The branch is the last output of the previous block. In compiled code, a sum at a block's end is
    a separate pass forward and backward. At the start of the next block, the sum is part of the
    pass that normalises x. add_norm, short_attention and gelu replace the block's own operations
    where they fit. Values and gradients equal the block's, to rounding. Blocks other than timm's
    plain Block with plain Attention run unchanged and return a branch of zeros.
    """
    if not is_plain(block):
        return block(summed(x_NLD, branch)), Branch(torch.zeros_like(branch.rows_NLD))
    assert isinstance(block, Block) and isinstance(block.attn, Attention)
    leaves_bias = _leaves_biases(block, x_NLD)
    x_NLD, normed_NLD = summed_and_normed(block.norm1, x_NLD, branch)
    branch = _attended(block.attn, normed_NLD, [block.ls1, block.drop_path1], leaves_bias)
    x_NLD, normed_NLD = summed_and_normed(block.norm2, x_NLD, branch)
    return x_NLD, _mlp(block.mlp, normed_NLD, [block.ls2, block.drop_path2], leaves_bias)


def no_branch(block: nn.Module, x_NLD: Tensor) -> Branch:
    """Return a branch of zeros for the first block, otherwise like the branch that `block` returns.

    So the first block shares one compiled program with the others, which saves more than the extra
    pass costs. The zeros have the dtype of the other branches and require a gradient where those
    branches do, although nothing reads the gradient. Otherwise torch would compile a second
    program.
    """
    is_scaled = not isinstance(getattr(block, "ls2", None), nn.Identity)  # by weights in x's dtype
    dtype = x_NLD.dtype if is_scaled else dtype_of_products(x_NLD)
    wants_gradient = x_NLD.requires_grad and is_plain(block)
    rows_NLD = torch.zeros_like(x_NLD, dtype=dtype, requires_grad=wants_gradient)
    return Branch(rows_NLD, _zeros_as_bias(block, x_NLD))


def _zeros_as_bias(block: nn.Module, x_NLD: Tensor) -> Tensor | None:
    if not (is_plain(block) and isinstance(block, Block) and type(block.mlp) is Mlp):
        return None
    mlp = block.mlp
    then = [mlp.drop2, block.ls2, block.drop_path2]
    if not (_leaves_biases(block, x_NLD) and can_leave_bias(mlp.fc2, then)):
        return None
    assert isinstance(mlp.fc2, nn.Linear)
    bias_D = mlp.fc2.bias
    return nn.Parameter(torch.zeros_like(bias_D), requires_grad=bias_D.requires_grad)


def _leaves_biases(block: Block, x_NLD: Tensor) -> bool:
    """Return True if the block and the next block add biases in the pass that normalises x."""
    return has_own_norm(block.norm1, x_NLD) and has_own_norm(block.norm2, x_NLD)


def _attended(
    attention: Attention, x_NLD: Tensor, then: Sequence[nn.Module], leaves_bias: bool
) -> Branch:
    if _fits(attention, x_NLD):
        rows_NLD = short_attention(attention.qkv(x_NLD), attention.num_heads)
    elif leaves_bias:
        rows_NLD = _before_projection(attention, x_NLD)
    else:
        return Branch(passed(attention(x_NLD), then))
    return projected(attention.proj, rows_NLD, [attention.proj_drop, *then], leaves_bias)


def _before_projection(attention: Attention, x_NLD: Tensor) -> Tensor:
    """Return the input of the attention's last linear layer, computed with torch's attention."""
    n, tokens, _ = x_NLD.shape
    qkv = attention.qkv(x_NLD).view(n, tokens, 3, attention.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return attended_by_torch(attention, q, k, v)


def _fits(attention: Attention, x_NLD: Tensor) -> bool:
    head_width = attention.qkv.out_features // (3 * attention.num_heads)
    dtype = dtype_of_products(x_NLD)
    return has_plain_heads(attention) and fits(x_NLD.shape[1], head_width, x_NLD.device, dtype)


def _mlp(mlp: nn.Module, x_NLD: Tensor, then: Sequence[nn.Module], leaves_bias: bool) -> Branch:
    if type(mlp) is not Mlp:
        return Branch(passed(mlp(x_NLD), then))
    a_NLC: Tensor = mlp.norm(mlp.drop1(_activated(mlp, x_NLD)))
    return projected(mlp.fc2, a_NLC, [mlp.drop2, *then], leaves_bias)


def _activated(mlp: Mlp, x_NLD: Tensor) -> Tensor:
    if not (_has_plain_gelu(mlp) and _gelu_fits(mlp, x_NLD)):
        a_NLC: Tensor = mlp.act(mlp.fc1(x_NLD))
        return a_NLC
    assert isinstance(mlp.fc1, nn.Linear)
    bias_C = mlp.fc1.bias  # gelu computes the gradient of this bias
    return gelu(F.linear(x_NLD, mlp.fc1.weight, bias_C.detach()), bias_C)


def _has_plain_gelu(mlp: Mlp) -> bool:
    """Return True if the MLP's first layer has a bias and the activation is GELU without tanh."""
    if type(mlp.fc1) is not nn.Linear or mlp.fc1.bias is None:
        return False
    return type(mlp.act) is nn.GELU and mlp.act.approximate == "none"


def _gelu_fits(mlp: Mlp, x_NLD: Tensor) -> bool:
    assert isinstance(mlp.fc1, nn.Linear)
    values = x_NLD.shape[:-1].numel() * mlp.fc1.out_features
    return gelu_fits(values, x_NLD.device, dtype_of_products(x_NLD))
