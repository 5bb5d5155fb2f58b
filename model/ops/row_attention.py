"""Attention of one row over all: `accelssl::row_attention`, for those who read nothing but CLS.

Contract. q_N1D is the row's queries, heads inside; kv_NLE, E = 2 D, what one projection gives all
tokens: keys, then values, heads inside. Result out_N1D, of the same dtype: softmax(q k' /
sqrt(head width)) v for each view and head. Logits, softmax, weights, their gradients and all sums
are in float32 at least: with a single query there is no matrix product to round them for.

That single query is what other kernels have no use for: they give a tile of 16 to 128 queries to
each head, and all but one are empty. Here keys and values are read once each way and their
gradients written once, as they lie, and that is all the time it takes. Triton on a GPU, the
definition below elsewhere.

Shapes: N views, L tokens with CLS, D width, E = 2 D.
"""

from typing import Any

import torch
from torch import Tensor

from accelssl.model.ops.short_attention import has_kernels, weights_of

MOST_TOKENS = 256
MOST_VALUES = 256 * 64
"""Largest number of key values of a head; more need more registers than a program has."""


def row_attention(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> Tensor:
    """Return out_N1D of the contract above, with gradients. Raise ValueError for wrong shapes."""
    n, tokens, channels = kv_NLE.shape
    width = channels // 2
    if channels % (2 * heads) or not 1 <= tokens <= MOST_TOKENS or q_N1D.shape != (n, 1, width):
        raise ValueError(
            f"q is {tuple(q_N1D.shape)}, kv {tuple(kv_NLE.shape)} with {heads} heads: need (N, 1, "
            f"heads x width) and (N, L, 2 x heads x width) with L from 1 to {MOST_TOKENS}."
        )
    out_N1D: Tensor = _attention(q_N1D, kv_NLE, heads)
    return out_N1D


def fits(tokens: int, head_width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the kernel runs for these heads.

    The kernel needs a GPU, half precision, and the project's own attention switched on.
    """
    is_small = tokens <= MOST_TOKENS and tokens * head_width <= MOST_VALUES
    return is_small and has_kernels(head_width, device, dtype)


@torch.library.custom_op("accelssl::row_attention", mutates_args=())
def _attention(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> Tensor:
    if kv_NLE.device.type == "cuda":
        from accelssl.model.ops import row_attention_kernel

        return row_attention_kernel.forward(q_N1D.contiguous(), kv_NLE.contiguous(), heads)
    return definition(q_N1D, kv_NLE, heads)


@_attention.register_fake
def _(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> Tensor:
    return torch.empty_like(q_N1D, memory_format=torch.contiguous_format)


@torch.library.custom_op("accelssl::row_attention_backward", mutates_args=())
def _attention_backward(
    grad_N1D: Tensor, q_N1D: Tensor, kv_NLE: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    if kv_NLE.device.type == "cuda":
        from accelssl.model.ops import row_attention_kernel

        rows = grad_N1D.contiguous(), q_N1D.contiguous()
        return row_attention_kernel.backward(*rows, kv_NLE.contiguous(), heads)
    return definition_backward(grad_N1D, q_N1D, kv_NLE, heads)


@_attention_backward.register_fake
def _(grad_N1D: Tensor, q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(q_N1D, memory_format=torch.contiguous_format),
        torch.empty_like(kv_NLE, memory_format=torch.contiguous_format),
    )


def definition(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> Tensor:
    """Compute the contract in torch: the path without a GPU and the reference for the kernel."""
    q, k, v = _heads(q_N1D, kv_NLE, heads)
    return (weights_of(q, k) @ v).reshape(q_N1D.shape).to(q_N1D.dtype)


def definition_backward(
    grad_N1D: Tensor, q_N1D: Tensor, kv_NLE: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss by q_N1D and kv_NLE, given the gradient by the result."""
    q, k, v = _heads(q_N1D, kv_NLE, heads)
    grad = grad_N1D.to(q.dtype).view(q.shape)
    weights = weights_of(q, k)
    of_weights = grad @ v.transpose(-1, -2)
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_logits = of_logits * q.shape[-1] ** -0.5
    of_q = of_logits @ k
    of_kv = torch.stack([of_logits.transpose(-1, -2) * q, weights.transpose(-1, -2) * grad])
    of_kv_NLE = of_kv.permute(1, 3, 0, 2, 4).reshape(kv_NLE.shape)
    return of_q.reshape(q_N1D.shape).to(q_N1D.dtype), of_kv_NLE.to(kv_NLE.dtype)


def _heads(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (N, heads, 1, head width) and keys and values (N, heads, L, head width).

    All are in float32 at least.
    """
    n, tokens, _ = kv_NLE.shape
    wide = torch.promote_types(kv_NLE.dtype, torch.float32)
    k, v = kv_NLE.to(wide).view(n, tokens, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return q_N1D.to(wide).view(n, heads, 1, -1), k, v


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    q_N1D, kv_NLE, ctx.heads = inputs
    ctx.save_for_backward(q_N1D, kv_NLE)


def _differentiate(ctx: Any, grad_N1D: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_attention_backward(grad_N1D, *ctx.saved_tensors, ctx.heads), None


_attention.register_autograd(_differentiate, setup_context=_setup_context)
