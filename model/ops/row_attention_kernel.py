"""Attention of one row over at most 256 in Triton: a program holds one head of one view.

The kernel computes row_attention.definition and keeps its contract. Without matrix products, the
bytes of keys and values limit the speed. The backward pass recomputes the weights.

A program's tiles are ROWS x HEAD, ROWS a power of two no less than L; rows beyond L are zeros
and do not change any sum.

Shapes: N views, L tokens, D width, E = 2 D.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from accelssl.model.ops.triton_device import on

VALUES_OF_A_WARP = 2048
"""Number of tile values per warp: 64 registers of a thread for keys, and as many for values."""


@triton.jit
def _loaded(q_ptr, kv_ptr, tokens, HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr):
    """Load query, keys and values of this program in float32.

    Also return the places of query and keys, and a mask of the valid rows.
    """
    D: tl.constexpr = HEADS * HEAD
    view = (tl.program_id(0) // HEADS).to(tl.int64)
    columns = (tl.program_id(0) % HEADS) * HEAD + tl.arange(0, HEAD)
    rows = tl.arange(0, ROWS)
    here = (view * tokens + rows[:, None]) * (2 * D) + columns[None, :]
    is_row = rows < tokens
    k = tl.load(kv_ptr + here, mask=is_row[:, None], other=0.0).to(tl.float32)
    v = tl.load(kv_ptr + here + D, mask=is_row[:, None], other=0.0).to(tl.float32)
    of_q = view * D + columns
    q = tl.load(q_ptr + of_q).to(tl.float32)
    return q, k, v, of_q, here, is_row


@triton.jit
def _weights(q, k, is_row, scale):
    logits = tl.where(is_row, tl.sum(q[None, :] * k, axis=1) * scale, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, axis=0))
    return powers / tl.sum(powers, axis=0)


@triton.jit
def row_attention_forward(
    q_ptr,
    kv_ptr,
    out_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    q, k, v, of_q, _, is_row = _loaded(q_ptr, kv_ptr, tokens, HEADS, HEAD, ROWS)
    weights = _weights(q, k, is_row, scale)
    out = tl.sum(weights[:, None] * v, axis=0)
    tl.store(out_ptr + of_q, out.to(out_ptr.dtype.element_ty))


@triton.jit
def row_attention_backward(
    grad_ptr,
    q_ptr,
    kv_ptr,
    of_q_ptr,
    of_kv_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    D: tl.constexpr = HEADS * HEAD
    dtype: tl.constexpr = of_kv_ptr.dtype.element_ty
    q, k, v, of_q, here, is_row = _loaded(q_ptr, kv_ptr, tokens, HEADS, HEAD, ROWS)
    grad = tl.load(grad_ptr + of_q).to(tl.float32)
    weights = _weights(q, k, is_row, scale)
    of_v = weights[:, None] * grad[None, :]
    tl.store(of_kv_ptr + here + D, of_v.to(dtype), mask=is_row[:, None])
    of_weights = tl.sum(grad[None, :] * v, axis=1)
    of_logits = weights * (of_weights - tl.sum(weights * of_weights, axis=0)) * scale
    of_k = of_logits[:, None] * q[None, :]
    tl.store(of_kv_ptr + here, of_k.to(dtype), mask=is_row[:, None])
    tl.store(of_q_ptr + of_q, tl.sum(of_logits[:, None] * k, axis=0).to(dtype))


def options(tokens: int, head_width: int) -> dict[str, int]:
    """Return the launch options of both kernels: tile rows and warps."""
    rows = triton.next_power_of_2(tokens)
    warps = max(1, rows * head_width // VALUES_OF_A_WARP)
    return {"ROWS": rows, "num_warps": warps}


def forward(q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> Tensor:
    """Return out_N1D of contiguous q_N1D and kv_NLE, on their device."""
    out_N1D = torch.empty_like(q_N1D)
    _launch(row_attention_forward, kv_NLE, heads, (q_N1D, kv_NLE, out_N1D))
    return out_N1D


def backward(grad_N1D: Tensor, q_N1D: Tensor, kv_NLE: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return gradients by q_N1D and kv_NLE of contiguous grad_N1D, q_N1D and kv_NLE."""
    of_q_N1D, of_kv_NLE = torch.empty_like(q_N1D), torch.empty_like(kv_NLE)
    tensors = grad_N1D, q_N1D, kv_NLE, of_q_N1D, of_kv_NLE
    _launch(row_attention_backward, kv_NLE, heads, tensors)
    return of_q_N1D, of_kv_NLE


def _launch(kernel: Any, kv_NLE: Tensor, heads: int, tensors: tuple[Tensor, ...]) -> None:
    n, tokens, channels = kv_NLE.shape
    if not n:
        return
    head_width = channels // (2 * heads)
    with on(kv_NLE.device):
        kernel[(n * heads,)](
            *tensors,
            tokens,
            head_width**-0.5,
            HEADS=heads,
            HEAD=head_width,
            **options(tokens, head_width),
        )
