"""A transformer block that computes only the row of the CLS token.

Shapes: N views, L tokens with CLS first, D width, E = 2 D.
"""

import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from accelssl.model.ops.row_attention import fits, row_attention
from accelssl.model.residual import Branch, summed, summed_and_normed


def cls_row(block: nn.Module, x_NLD: Tensor, branch: Branch) -> Tensor:
    """Return cls_N1D, equal to block(x + branch)[:, :1], without work for the other rows.

    branch is the output of the previous block that is not yet added to x (every_row.py). The other
    tokens only give the attention keys and values. Their queries, their output projection and their
    MLP are ten twelfths of the block's matrix products; the function skips them forward and
    backward. Values and gradients equal the block's, to rounding. Blocks other than timm's plain
    Block with plain Attention are computed whole.
    """
    if not is_plain(block):
        whole_NLD: Tensor = block(summed(x_NLD, branch))
        return whole_NLD[:, :1]
    assert isinstance(block, Block) and isinstance(block.attn, Attention)
    x_NLD, normed_NLD = summed_and_normed(block.norm1, x_NLD, branch)
    cls = x_NLD[:, :1]
    cls = cls + block.drop_path1(block.ls1(_attention(block.attn, normed_NLD)))
    out_N1D: Tensor = cls + block.drop_path2(block.ls2(block.mlp(block.norm2(cls))))
    return out_N1D


def is_plain(block: nn.Module) -> bool:
    """Return True if the block is timm's Block with timm's Attention, which cls_row can replace."""
    attention = getattr(block, "attn", None)
    is_timms = type(block) is Block and type(attention) is Attention
    return is_timms and getattr(attention, "gate", None) is None


def _attention(attention: Attention, x_NLD: Tensor) -> Tensor:
    """Return the attention output of the first row over all rows."""
    n, tokens, _ = x_NLD.shape
    heads, width = attention.num_heads, attention.qkv.out_features // 3
    weight, bias = attention.qkv.weight, attention.qkv.bias
    q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])
    q_N1D = F.linear(x_NLD[:, :1], weight[:width], q_bias)
    kv_NLE = F.linear(x_NLD, weight[width:], kv_bias)
    if has_plain_heads(attention) and fits(tokens, width // heads, x_NLD.device, kv_NLE.dtype):
        row_N1D = row_attention(q_N1D, kv_NLE, heads)
    else:
        q = q_N1D.view(n, 1, heads, -1).transpose(1, 2)
        k, v = kv_NLE.view(n, tokens, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        row_N1D = attended_by_torch(attention, q, k, v)
    out_N1D: Tensor = attention.proj_drop(attention.proj(row_N1D))
    return out_N1D


def has_plain_heads(attention: Attention) -> bool:
    """Return True if only attention runs between the first and the last linear layer."""
    between = attention.q_norm, attention.k_norm, getattr(attention, "norm", nn.Identity())
    return attention.attn_drop.p == 0 and all(isinstance(m, nn.Identity) for m in between)


def attended_by_torch(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return torch's attention output, (N, queries, D), the input of the last linear layer.

    q, k and v come from the first linear layer, each as (N, heads, rows, head width).
    """
    dropped = attention.attn_drop.p if attention.training else 0.0
    q, k = attention.q_norm(q), attention.k_norm(k)
    rows = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped)
    rows = rows.transpose(1, 2).flatten(2)
    norm = getattr(attention, "norm", None)  # newer timm releases can have a norm here
    return norm(rows) if norm else rows
