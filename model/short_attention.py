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

The gradient of the projection's bias is the sum of that over all rows. The backward pass sums a
view's rows while it has them, unrounded, in float32 at least: whoever adds the bias detached and
hands it on saves reading the whole gradient once more, and its rounding.

Shapes: N views, L tokens with CLS, D width, C = 3 D.
"""

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

SWITCH = "ACCELSSL_SHORT_ATTENTION"
"""Set to 0 to have torch's attention at every length."""

MOST_TOKENS = 128
HEAD_WIDTHS = (16, 32, 64, 128)
_HAS_TRITON = find_spec("triton") is not None


def short_attention(qkv_NLC: Tensor, heads: int, bias_C: Tensor | None = None) -> Tensor:
    """out_NLD of the contract above, with gradient. ValueError where the shape breaks it.

    bias_C: what each row of qkv_NLC has in it already, detached. Its gradient comes from here.
    """
    tokens, channels = qkv_NLC.shape[1:]
    if channels % (3 * heads) or not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"qkv is {tuple(qkv_NLC.shape)} with {heads} heads: need (N, L, 3 x heads x width) "
            f"with L from 1 to {MOST_TOKENS}."
        )
    out_NLD: Tensor = _attention(qkv_NLC, heads, bias_C)
    return out_NLD


def fits(tokens: int, head_width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel is there for such heads: on a GPU, in half precision, if switched on."""
    return (
        device.type == "cuda"
        and _HAS_TRITON
        and os.environ.get(SWITCH) != "0"
        and tokens <= MOST_TOKENS
        and head_width in HEAD_WIDTHS
        and dtype in (torch.bfloat16, torch.float16)
    )


@torch.library.custom_op("accelssl::short_attention", mutates_args=())
def _attention(qkv_NLC: Tensor, heads: int, bias_C: Tensor | None) -> Tensor:
    if qkv_NLC.device.type == "cuda":
        from accelssl.model import short_attention_kernel

        return short_attention_kernel.forward(qkv_NLC.contiguous(), heads)
    return definition(qkv_NLC, heads)


@_attention.register_fake
def _(qkv_NLC: Tensor, heads: int, bias_C: Tensor | None) -> Tensor:
    n, tokens, channels = qkv_NLC.shape
    return qkv_NLC.new_empty((n, tokens, channels // 3))


@torch.library.custom_op("accelssl::short_attention_backward", mutates_args=())
def _attention_backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    if qkv_NLC.device.type == "cuda":
        from accelssl.model import short_attention_kernel

        return short_attention_kernel.backward(grad_NLD.contiguous(), qkv_NLC.contiguous(), heads)
    return definition_backward(grad_NLD, qkv_NLC, heads)


@_attention_backward.register_fake
def _(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    n, _, channels = qkv_NLC.shape
    of_bias_NC = qkv_NLC.new_empty((n, channels), dtype=_wide(qkv_NLC.dtype))
    return torch.empty_like(qkv_NLC, memory_format=torch.contiguous_format), of_bias_NC


def definition(qkv_NLC: Tensor, heads: int) -> Tensor:
    """The contract in torch: the path without a GPU, and what the kernel is held to."""
    q, k, v = _heads(qkv_NLC, heads)
    return _rows(_weights(q, k) @ v).to(qkv_NLC.dtype)


def definition_backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Gradient of the loss by qkv_NLC, given that by the result; and of_bias_NC, each view's sum of
    it over the tokens, before it is rounded."""
    q, k, v = _heads(qkv_NLC, heads)
    n, tokens, _ = grad_NLD.shape
    grad = grad_NLD.to(q.dtype).view(n, tokens, heads, -1).transpose(1, 2)
    weights = _weights(q, k)
    of_weights = grad @ v.transpose(-1, -2)
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_logits = of_logits * q.shape[-1] ** -0.5
    parts = of_logits @ k, of_logits.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad
    of_qkv_NLC = torch.cat([_rows(part) for part in parts], dim=2)
    return of_qkv_NLC.to(qkv_NLC.dtype), of_qkv_NLC.sum(1)


def _heads(qkv_NLC: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as (N, heads, L, head width), float32 at least."""
    n, tokens, _ = qkv_NLC.shape
    wide = qkv_NLC.to(_wide(qkv_NLC.dtype))
    q, k, v = wide.view(n, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)


def _rows(of_heads: Tensor) -> Tensor:
    n, _, tokens, _ = of_heads.shape
    return of_heads.transpose(1, 2).reshape(n, tokens, -1)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int, Tensor | None], output: Tensor) -> None:
    qkv_NLC, ctx.heads, bias_C = inputs
    ctx.bias_dtype = None if bias_C is None else bias_C.dtype
    ctx.save_for_backward(qkv_NLC)


def _differentiate(ctx: Any, grad_NLD: Tensor) -> tuple[Tensor, None, Tensor | None]:
    (qkv_NLC,) = ctx.saved_tensors
    of_qkv_NLC, of_bias_NC = _attention_backward(grad_NLD, qkv_NLC, ctx.heads)
    of_bias_C = of_bias_NC.sum(0).to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
    return of_qkv_NLC, None, of_bias_C


_attention.register_autograd(_differentiate, setup_context=_setup_context)
