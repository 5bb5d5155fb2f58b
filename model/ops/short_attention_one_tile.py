"""Short attention where one tile holds all tokens of a head.

A program's tiles are ROWS x HEAD, ROWS a power of two no less than L; rows beyond L are zeros,
which no sum sees.

Shapes: N views, L tokens, D width, C = 3 D.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def places(first, tokens, width, HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr):
    """Return the places of ROWS rows of this program, in elements, and a mask of valid rows.

    The rows start at the program's row `first`, in a tensor with `width` elements a row.
    """
    view = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    rows = first + tl.arange(0, ROWS)[:, None]
    here = (view * tokens + rows) * width + head * HEAD + tl.arange(0, HEAD)[None, :]
    return here, rows < tokens


@triton.jit
def _loaded(qkv_ptr, tokens, HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr):
    """Load queries, keys and values; also return the queries' places and a mask of valid rows."""
    D: tl.constexpr = HEADS * HEAD
    here, is_row = places(0, tokens, 3 * D, HEADS, HEAD, ROWS)
    q = tl.load(qkv_ptr + here, mask=is_row, other=0.0)
    k = tl.load(qkv_ptr + here + D, mask=is_row, other=0.0)
    v = tl.load(qkv_ptr + here + 2 * D, mask=is_row, other=0.0)
    return q, k, v, here, is_row


@triton.jit
def _weights(q, k, tokens, scale, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    logits = tl.where((tl.arange(0, ROWS) < tokens)[None, :], logits, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


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
    q, k, v, _, _ = _loaded(qkv_ptr, tokens, HEADS, HEAD, ROWS)
    weights = _weights(q, k, tokens, scale, ROWS, PRECISION)
    out = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    here, is_row = places(0, tokens, D, HEADS, HEAD, ROWS)
    tl.store(out_ptr + here, out.to(v.dtype), mask=is_row)


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
    here, is_row = places(0, tokens, D, HEADS, HEAD, ROWS)
    grad = tl.load(grad_ptr + here, mask=is_row, other=0.0)
    q, k, v, here, is_row = _loaded(qkv_ptr, tokens, HEADS, HEAD, ROWS)
    weights = _weights(q, k, tokens, scale, ROWS, PRECISION)
    of_v = tl.dot(tl.trans(weights.to(v.dtype)), grad, input_precision=PRECISION)
    tl.store(of_qkv_ptr + here + 2 * D, of_v.to(v.dtype), mask=is_row)
    of_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    of_logits = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None])
    of_logits = (of_logits * scale).to(v.dtype)
    of_q = tl.dot(of_logits, k, input_precision=PRECISION)
    tl.store(of_qkv_ptr + here, of_q.to(v.dtype), mask=is_row)
    of_k = tl.dot(tl.trans(of_logits), q, input_precision=PRECISION)
    tl.store(of_qkv_ptr + here + D, of_k.to(v.dtype), mask=is_row)
