"""Attention over at most 128 tokens in Triton: a program holds one head of one view.

It computes what short_attention.definition does, whose contract it keeps. Nothing is saved between
the passes but the input: all weights of a head fit a program, so the backward pass makes them anew
instead of reading them.

Shapes: N views, L tokens, D width, C = 3 D; a program's tiles are ROWS x HEAD, ROWS the next power
of two above L; rows beyond L are zeros, which no sum sees.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _weights(q, k, tokens, scale, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    logits = tl.where((tl.arange(0, ROWS) < tokens)[None, :], logits, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _places(tokens, width, HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr):
    """Where this program's rows begin, in elements: in a tensor of `width` a row, and which are."""
    view = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    rows = tl.arange(0, ROWS)[:, None]
    places = (view * tokens + rows) * width + head * HEAD + tl.arange(0, HEAD)[None, :]
    return places, rows < tokens


@triton.jit
def short_attention_forward(
    qkv_ptr,
    out_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    D: tl.constexpr = HEADS * HEAD
    places, is_row = _places(tokens, 3 * D, HEADS, HEAD, ROWS)
    q = tl.load(qkv_ptr + places, mask=is_row, other=0.0)
    k = tl.load(qkv_ptr + places + D, mask=is_row, other=0.0)
    v = tl.load(qkv_ptr + places + 2 * D, mask=is_row, other=0.0)
    weights = _weights(q, k, tokens, scale, ROWS, PRECISION)
    out = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    places, is_row = _places(tokens, D, HEADS, HEAD, ROWS)
    tl.store(out_ptr + places, out.to(v.dtype), mask=is_row)


@triton.jit
def short_attention_backward(
    grad_ptr,
    qkv_ptr,
    of_qkv_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    D: tl.constexpr = HEADS * HEAD
    places, is_row = _places(tokens, D, HEADS, HEAD, ROWS)
    grad = tl.load(grad_ptr + places, mask=is_row, other=0.0)
    places, is_row = _places(tokens, 3 * D, HEADS, HEAD, ROWS)
    q = tl.load(qkv_ptr + places, mask=is_row, other=0.0)
    k = tl.load(qkv_ptr + places + D, mask=is_row, other=0.0)
    v = tl.load(qkv_ptr + places + 2 * D, mask=is_row, other=0.0)
    weights = _weights(q, k, tokens, scale, ROWS, PRECISION)
    of_v = tl.dot(tl.trans(weights.to(v.dtype)), grad, input_precision=PRECISION)
    tl.store(of_qkv_ptr + places + 2 * D, of_v.to(v.dtype), mask=is_row)
    of_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    of_logits = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None])
    of_logits = (of_logits * scale).to(v.dtype)
    of_q = tl.dot(of_logits, k, input_precision=PRECISION)
    tl.store(of_qkv_ptr + places, of_q.to(v.dtype), mask=is_row)
    of_k = tl.dot(tl.trans(of_logits), q, input_precision=PRECISION)
    tl.store(of_qkv_ptr + places + D, of_k.to(v.dtype), mask=is_row)


def forward(qkv_NLC: Tensor, heads: int) -> Tensor:
    """out_NLD of contiguous qkv_NLC, on its device."""
    n, tokens, channels = qkv_NLC.shape
    out_NLD = qkv_NLC.new_empty((n, tokens, channels // 3))
    _launch(short_attention_forward, (qkv_NLC, out_NLD), n, tokens, heads, channels // (3 * heads))
    return out_NLD


def backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> Tensor:
    """Gradient by qkv_NLC of contiguous grad_NLD and qkv_NLC."""
    n, tokens, channels = qkv_NLC.shape
    of_qkv_NLC = torch.empty_like(qkv_NLC)
    tensors = grad_NLD, qkv_NLC, of_qkv_NLC
    _launch(short_attention_backward, tensors, n, tokens, heads, channels // (3 * heads))
    return of_qkv_NLC


def _launch(
    kernel, tensors: tuple[Tensor, ...], n: int, tokens: int, heads: int, head_width: int
) -> None:
    if not n:
        return
    rows = max(16, triton.next_power_of_2(tokens))
    precision = "ieee" if tensors[0].dtype == torch.float32 else "tf32"
    device = tensors[0].device
    # Triton launches on the current device, whichever the tensors are on.
    with torch.cuda.device(device if device.type == "cuda" else -1):
        kernel[(n * heads,)](
            *tensors,
            tokens,
            head_width**-0.5,
            HEADS=heads,
            HEAD=head_width,
            ROWS=rows,
            PRECISION=precision,
            num_warps=max(1, min(8, rows // 16)),
            num_stages=1,
        )
