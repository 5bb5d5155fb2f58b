"""Attention over few tokens: `accelssl::short_attention`, from projected rows to attended rows.

Contract. qkv_NLC, C = 3 x heads x head width, is what a block's one projection gives: queries,
keys, then values, heads inside. Result out_NLD, D = heads x head width, contiguous, of the same
dtype: softmax(q k' / sqrt(head width)) v for each view and head. Logits, softmax and sums are in
float32 at least; weights and their gradients are rounded to the inputs' dtype for the products, as
flash attention does.

Flash attention walks over keys and has its answer in many pieces; its kernels are made for hundreds
of tokens. At 128 and fewer a block of threads holds all of a head, so that forward and backward are
one pass each, and neither copies rows into heads and back: the backward pass writes the gradient of
the projection's output as it lies. Triton on a GPU, the definition below elsewhere.

Shapes: N views, L tokens with CLS, D width, C = 3 D.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from accelssl.switches import uses_kernels

"""Set to 0 to have torch's attention at every length."""

MOST_TOKENS = 128
HEAD_WIDTHS = (16, 32, 64, 128)
_HAS_TRITON = find_spec("triton") is not None


def short_attention(qkv_NLC: Tensor, heads: int) -> Tensor:
    """Return out_NLD of the contract above, with gradient. Raise ValueError for a wrong shape."""
    tokens, channels = qkv_NLC.shape[1:]
    if channels % (3 * heads) or not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"qkv is {tuple(qkv_NLC.shape)} with {heads} heads: need (N, L, 3 x heads x width) "
            f"with L from 1 to {MOST_TOKENS}."
        )
    out_NLD: Tensor = _attention(qkv_NLC, heads)
    return out_NLD


def fits(tokens: int, head_width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the kernel runs for these heads: on a GPU, half precision, switched on."""
    return tokens <= MOST_TOKENS and has_kernels(head_width, device, dtype)


def has_kernels(head_width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if `fits` holds apart from the number of tokens; also for row_attention."""
    return (
        device.type == "cuda"
        and _HAS_TRITON
        and uses_kernels()
        and head_width in HEAD_WIDTHS
        and dtype in (torch.bfloat16, torch.float16)
    )


@torch.library.custom_op("accelssl::short_attention", mutates_args=())
def _attention(qkv_NLC: Tensor, heads: int) -> Tensor:
    if qkv_NLC.device.type == "cuda":
        from accelssl.model.ops import short_attention_kernel

        return short_attention_kernel.forward(qkv_NLC.contiguous(), heads)
    return definition(qkv_NLC, heads)


@_attention.register_fake
def _(qkv_NLC: Tensor, heads: int) -> Tensor:
    n, tokens, channels = qkv_NLC.shape
    return qkv_NLC.new_empty((n, tokens, channels // 3))


@torch.library.custom_op("accelssl::short_attention_backward", mutates_args=())
def _attention_backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> Tensor:
    if qkv_NLC.device.type == "cuda":
        from accelssl.model.ops import short_attention_kernel

        return short_attention_kernel.backward(grad_NLD.contiguous(), qkv_NLC.contiguous(), heads)
    return definition_backward(grad_NLD, qkv_NLC, heads)


@_attention_backward.register_fake
def _(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> Tensor:
    return torch.empty_like(qkv_NLC, memory_format=torch.contiguous_format)


def definition(qkv_NLC: Tensor, heads: int) -> Tensor:
    """Compute the contract in torch: the path without a GPU and the reference for the kernel."""
    q, k, v = _heads(qkv_NLC, heads)
    return _rows(weights_of(q, k) @ v).to(qkv_NLC.dtype)


def definition_backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> Tensor:
    """Return the gradient of the loss by qkv_NLC, given the gradient by the result."""
    q, k, v = _heads(qkv_NLC, heads)
    n, tokens, _ = grad_NLD.shape
    grad = grad_NLD.to(q.dtype).view(n, tokens, heads, -1).transpose(1, 2)
    weights = weights_of(q, k)
    of_weights = grad @ v.transpose(-1, -2)
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_logits = of_logits * q.shape[-1] ** -0.5
    parts = of_logits @ k, of_logits.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad
    return torch.cat([_rows(part) for part in parts], dim=2).to(qkv_NLC.dtype)


def _heads(qkv_NLC: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as (N, heads, L, head width), in float32 at least."""
    n, tokens, _ = qkv_NLC.shape
    wide = qkv_NLC.to(torch.promote_types(qkv_NLC.dtype, torch.float32))
    q, k, v = wide.view(n, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def weights_of(q: Tensor, k: Tensor) -> Tensor:
    """Return the weights of each query for all keys, (..., queries, L)."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)


def _rows(of_heads: Tensor) -> Tensor:
    n, _, tokens, _ = of_heads.shape
    return of_heads.transpose(1, 2).reshape(n, tokens, -1)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    qkv_NLC, ctx.heads = inputs
    ctx.save_for_backward(qkv_NLC)


def _differentiate(ctx: Any, grad_NLD: Tensor) -> tuple[Tensor, None]:
    (qkv_NLC,) = ctx.saved_tensors
    return _attention_backward(grad_NLD, qkv_NLC, ctx.heads), None


_attention.register_autograd(_differentiate, setup_context=_setup_context)
