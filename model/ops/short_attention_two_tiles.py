"""Short attention for 65 to 96 tokens: a tile of FIRST rows, a, and one of REST rows, b.

One tile of 128 rows would compute 65 tokens as 128 x 128. Here attention is four products: of the
queries of a, and of those of b, with the keys of both. For more tokens than 96 that is no gain: too
few programs fit a multiprocessor at a time.

The queries of b come first, and turned: columns by rows, and their weights keys by queries. So
every product has FIRST or HEAD rows (but the small one of b with b), the fewest that the tensor
cores of compute capability 9 and 10 take from shared memory: with fewer, whole tiles would wait in
registers. Their weights, rounded as the products want them, wait until the queries of a have been
through, so that each result is complete at once.

Shapes: N views, L tokens, D width, C = 3 D; REST a power of two, no less than 16 and L - FIRST;
rows beyond L are zeros, which no sum sees.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from accelssl.model.ops.short_attention_one_tile import places

FIRST = tl.constexpr(64)


@triton.jit
def _turned(tokens, width, HEADS: tl.constexpr, HEAD: tl.constexpr, REST: tl.constexpr):
    """Return the transposed places of b and a mask of its rows."""
    view = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    rows = FIRST + tl.arange(0, REST)[None, :]
    here = (view * tokens + rows) * width + head * HEAD + tl.arange(0, HEAD)[:, None]
    return here, rows < tokens


@triton.jit
def _loaded(qkv_ptr, tokens, HEADS: tl.constexpr, HEAD: tl.constexpr, REST: tl.constexpr):
    """Load queries of a, transposed queries of b, then keys and values of both."""
    D: tl.constexpr = HEADS * HEAD
    a, _ = places(0, tokens, 3 * D, HEADS, HEAD, FIRST)
    b, is_row = places(FIRST, tokens, 3 * D, HEADS, HEAD, REST)
    turned, is_turned_row = _turned(tokens, 3 * D, HEADS, HEAD, REST)
    k_a = tl.load(qkv_ptr + a + D)
    k_b = tl.load(qkv_ptr + b + D, mask=is_row, other=0.0)
    q_a = tl.load(qkv_ptr + a)
    turned_q = tl.load(qkv_ptr + turned, mask=is_turned_row, other=0.0)
    v_a = tl.load(qkv_ptr + a + 2 * D)
    v_b = tl.load(qkv_ptr + b + 2 * D, mask=is_row, other=0.0)
    return q_a, turned_q, k_a, k_b, v_a, v_b


@triton.jit
def _softmax(logits_a, logits_b, AXIS: tl.constexpr):
    largest = tl.maximum(tl.max(logits_a, AXIS), tl.max(logits_b, AXIS)).expand_dims(AXIS)
    powers_a, powers_b = tl.exp(logits_a - largest), tl.exp(logits_b - largest)
    total = (tl.sum(powers_a, AXIS) + tl.sum(powers_b, AXIS)).expand_dims(AXIS)
    return powers_a / total, powers_b / total


@triton.jit
def _of_logits(weights_a, weights_b, of_a, of_b, scale, AXIS: tl.constexpr, dtype: tl.constexpr):
    """Return gradients by the products of queries and keys, given the gradients by the weights."""
    mean = tl.sum(weights_a * of_a, AXIS) + tl.sum(weights_b * of_b, AXIS)
    of_a = weights_a * (of_a - mean.expand_dims(AXIS))
    of_b = weights_b * (of_b - mean.expand_dims(AXIS))
    return (of_a * scale).to(dtype), (of_b * scale).to(dtype)


@triton.jit
def _weights(q_a, k_a, k_b, tokens, scale, REST: tl.constexpr, PRECISION: tl.constexpr):
    """Return the weights of a's queries: queries by keys of a, and by keys of b."""
    logits_a = tl.dot(q_a, tl.trans(k_a), input_precision=PRECISION) * scale
    logits_b = tl.dot(q_a, tl.trans(k_b), input_precision=PRECISION) * scale
    is_key = FIRST + tl.arange(0, REST) < tokens
    return _softmax(logits_a, tl.where(is_key[None, :], logits_b, float("-inf")), 1)


@triton.jit
def _turned_weights(turned_q, k_a, k_b, tokens, scale, REST: tl.constexpr, PRECISION: tl.constexpr):
    """Return the transposed weights of b's queries: keys of a, and keys of b, by queries."""
    logits_a = tl.dot(k_a, turned_q, input_precision=PRECISION) * scale
    logits_b = tl.dot(k_b, turned_q, input_precision=PRECISION) * scale
    is_key = FIRST + tl.arange(0, REST) < tokens
    return _softmax(logits_a, tl.where(is_key[:, None], logits_b, float("-inf")), 0)


@triton.jit
def _sum(left_a, right_a, left_b, right_b, PRECISION: tl.constexpr):
    product = tl.dot(left_a, right_a, input_precision=PRECISION)
    return tl.dot(left_b, right_b, product, input_precision=PRECISION)


@triton.jit
def short_attention_tiles_forward(
    qkv_ptr,
    out_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    REST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    D: tl.constexpr = HEADS * HEAD
    q_a, turned_q, k_a, k_b, v_a, v_b = _loaded(qkv_ptr, tokens, HEADS, HEAD, REST)
    dtype: tl.constexpr = q_a.dtype

    turned_a, turned_b = _turned_weights(turned_q, k_a, k_b, tokens, scale, REST, PRECISION)
    out = _sum(tl.trans(v_a), turned_a.to(dtype), tl.trans(v_b), turned_b.to(dtype), PRECISION)
    turned, is_turned_row = _turned(tokens, D, HEADS, HEAD, REST)
    tl.store(out_ptr + turned, out.to(dtype), mask=is_turned_row)

    weights_a, weights_b = _weights(q_a, k_a, k_b, tokens, scale, REST, PRECISION)
    out = _sum(weights_a.to(dtype), v_a, weights_b.to(dtype), v_b, PRECISION)
    a, _ = places(0, tokens, D, HEADS, HEAD, FIRST)
    tl.store(out_ptr + a, out.to(dtype))


@triton.jit
def short_attention_tiles_backward(
    grad_ptr,
    qkv_ptr,
    of_qkv_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    REST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    D: tl.constexpr = HEADS * HEAD
    a, _ = places(0, tokens, 3 * D, HEADS, HEAD, FIRST)
    turned, is_turned_row = _turned(tokens, 3 * D, HEADS, HEAD, REST)
    q_a, turned_q, k_a, k_b, v_a, v_b = _loaded(qkv_ptr, tokens, HEADS, HEAD, REST)
    of_a, _ = places(0, tokens, D, HEADS, HEAD, FIRST)
    of_b, _ = _turned(tokens, D, HEADS, HEAD, REST)
    grad_a = tl.load(grad_ptr + of_a)
    turned_grad = tl.load(grad_ptr + of_b, mask=is_turned_row, other=0.0)
    dtype: tl.constexpr = q_a.dtype

    turned_a, turned_b = _turned_weights(turned_q, k_a, k_b, tokens, scale, REST, PRECISION)
    of_a = tl.dot(v_a, turned_grad, input_precision=PRECISION)
    of_b = tl.dot(v_b, turned_grad, input_precision=PRECISION)
    of_turned_a, of_turned_b = _of_logits(turned_a, turned_b, of_a, of_b, scale, 0, dtype)
    turned_a, turned_b = turned_a.to(dtype), tl.trans(turned_b.to(dtype))

    weights_a, weights_b = _weights(q_a, k_a, k_b, tokens, scale, REST, PRECISION)
    of_v_a = _sum(tl.trans(weights_a.to(dtype)), grad_a, turned_a, tl.trans(turned_grad), PRECISION)
    tl.store(of_qkv_ptr + a + 2 * D, of_v_a.to(dtype))
    of_v_b = _sum(tl.trans(grad_a), weights_b.to(dtype), turned_grad, turned_b, PRECISION)
    tl.store(of_qkv_ptr + turned + 2 * D, of_v_b.to(dtype), mask=is_turned_row)

    of_a = tl.dot(grad_a, tl.trans(v_a), input_precision=PRECISION)
    of_b = tl.dot(grad_a, tl.trans(v_b), input_precision=PRECISION)
    of_a, of_b = _of_logits(weights_a, weights_b, of_a, of_b, scale, 1, dtype)
    of_q_a = _sum(of_a, k_a, of_b, k_b, PRECISION)
    tl.store(of_qkv_ptr + a, of_q_a.to(dtype))
    of_q_b = _sum(tl.trans(k_a), of_turned_a, tl.trans(k_b), of_turned_b, PRECISION)
    tl.store(of_qkv_ptr + turned, of_q_b.to(dtype), mask=is_turned_row)

    of_k_a = _sum(tl.trans(of_a), q_a, of_turned_a, tl.trans(turned_q), PRECISION)
    tl.store(of_qkv_ptr + a + D, of_k_a.to(dtype))
    of_k_b = _sum(tl.trans(q_a), of_b, turned_q, tl.trans(of_turned_b), PRECISION)
    tl.store(of_qkv_ptr + turned + D, of_k_b.to(dtype), mask=is_turned_row)
