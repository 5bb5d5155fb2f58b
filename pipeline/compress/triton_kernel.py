# Triton comes without types, and its tiles have none that a checker could use.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Fused op in Triton, for GPUs on which the CUDA C++ implementation does not compile.

The first launch sums the gray of parts of each crop, for the contrast step. Then one launch for
each kind of sample computes the tokens, one per program. A program reads only the pixels of its
token (with a halo if the crop is blurred), changes their colours in float32 and rounds once. Blur
and shrink are products with small matrices. There are no atomics, so every run gives the same
result. An index outside the grid reads no memory outside the crop and gives a token of NaN.

Legend of the kernels: r, g, b are tiles of one channel each. Their sides are powers of two, and
they are zero beyond their pixels. `row` points at a sample's parameters.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from accelssl.pipeline.compress.reference import BLUR_RADIUS, IMAGENET_STD
from accelssl.pipeline.compress.shrink import shrink_matrix
from accelssl.pipeline.compress.triton_colours import (
    gray_before_contrast,
    jittered_and_gray,
    load_levels,
    solarized_and_centred,
)
from accelssl.pipeline.compression import BASE_SIDE, TOKEN_VALUES
from accelssl.pipeline.draws.augmentation import Column

PART_PIXELS, PART_WARPS = 2048, 8
# Warps by the width of the tiles: enough that no register spills on sm_90.
WARPS = {16: 2, 32: 4, 64: 8}

COLUMNS = tl.constexpr(len(Column))
ORDER, SIGMA = tl.constexpr(int(Column.ORDER)), tl.constexpr(int(Column.SIGMA))
FLIP, SOLARIZE = tl.constexpr(int(Column.FLIP)), tl.constexpr(int(Column.SOLARIZE))
HALO, SIDE, VALUES = (tl.constexpr(x) for x in (BLUR_RADIUS, BASE_SIDE, TOKEN_VALUES))
STD_R, STD_G, STD_B = (tl.constexpr(std) for std in IMAGENET_STD)
# Kinds of samples: not blurred; blurred; blurred, then solarized. Blur and shrink are one product
# unless solarize comes between them. At p = 16 nothing is shrunk, so the last two kinds are one.
PLAIN, BLURRED, SOLARIZED = (tl.constexpr(kind) for kind in range(3))


def augment_patchify(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> Tensor:
    """Return tokens_NLV in `dtype` for inputs that keep the contract of op.py.

    Launches on the current stream without waiting. The first call for a p, dtype and device
    compiles and copies a matrix, so call once before you capture a CUDA graph.
    """
    crops, params, keep_idx = (x.contiguous() for x in (crops_NHWC, params_NP, keep_idx_NL))
    (n, kept), size = keep_idx.shape, crops.shape[1]
    tokens = crops.new_empty((n, kept, TOKEN_VALUES), dtype=dtype)
    if not tokens.numel():
        return tokens
    parts = triton.cdiv(size * size, PART_PIXELS)
    sums = crops.new_empty((n, parts), dtype=torch.float32)
    tile = triton.next_power_of_2(p)
    with torch.cuda.device_of(crops):
        _sum_gray[(n, parts)](sums, crops, params, size, parts, PART_PIXELS, num_warps=PART_WARPS)
        for kind in kinds(p):
            wide = width(p, kind)
            _make_tokens[(n * kept,)](
                *(tokens, crops, params, keep_idx, sums, _padded_shrink(p, crops.device)),
                *(size, kept, parts, triton.next_power_of_2(parts), p, kind, tile, wide),
                num_warps=WARPS[wide],
            )
    return tokens


def kinds(p: int) -> tuple[int, ...]:
    """Return the kinds of samples that need a launch each."""
    return (0, 2) if p == BASE_SIDE else (0, 1, 2)


def width(p: int, kind: int) -> int:
    """Return the width in pixels of a tile with the rows of a patch, and its halo if blurred."""
    return int(triton.next_power_of_2(p + 2 * BLUR_RADIUS if kind else p))


@cache
def _padded_shrink(p: int, device: torch.device) -> Tensor:
    """Return A of shrink_matrix, padded with columns of zeros to the width of the tile."""
    matrix = torch.zeros(BASE_SIDE, triton.next_power_of_2(p))
    matrix[:, :p] = torch.tensor(shrink_matrix(p), dtype=torch.float32)
    return matrix.to(device)


@triton.jit(do_not_specialize=["size", "parts"])
def _sum_gray(sums, crops, rows, size, parts, PIXELS: tl.constexpr):
    """Write sums[n, part], the gray before contrast of PIXELS pixels, for each jittered crop."""
    sample = tl.program_id(0).to(tl.int64)
    row = rows + sample * COLUMNS
    order = tl.load(row + ORDER).to(tl.int32)
    if order >= 0:
        pixels = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        inside = pixels < size * size
        r, g, b = load_levels(crops + sample * size * size * 3 + pixels * 3, inside)
        gray = gray_before_contrast(r, g, b, order, row)
        total = tl.sum(tl.where(inside, gray, 0.0), 0)
        tl.store(sums + sample * parts + tl.program_id(1), total)


@triton.jit(do_not_specialize=["size", "kept", "parts"])
def _make_tokens(
    tokens, crops, rows, keep_idx, sums, shrink, size, kept, parts, PARTS: tl.constexpr,
    P: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write one token per program, if its sample is of this KIND.

    Each kind has its own launch, because a blurred token needs several times the registers.
    """
    token = tl.program_id(0).to(tl.int64)
    sample = token // kept
    row = rows + sample * COLUMNS
    is_apart = (tl.load(row + SOLARIZE) > 0) | (P == SIDE)
    blurred = tl.where(is_apart, SOLARIZED, BLURRED)
    if tl.where(tl.load(row + SIGMA) > 0, blurred, PLAIN) == KIND:
        crop = crops + sample * size * size * 3
        place, grid = tl.load(keep_idx + token), size // P
        is_valid = (place >= 0) & (place < grid * grid)
        place = tl.where(is_valid, place, 0).to(tl.int32)
        top, left = place // grid * P, place % grid * P
        mean = _mean_gray(sums + sample * parts, row, size, parts, PARTS)
        if P == SIDE and KIND == PLAIN:
            r, g, b = _pixels(crop, row, mean, top, left, size, SIDE, SIDE, WIDE)
            r, g, b = solarized_and_centred(r, g, b, row)
        else:
            r, g, b = _product_with_pixels(
                crop, row, mean, top, left, size, shrink, P, KIND, TILE, WIDE
            )
        if KIND == SOLARIZED:
            r, g, b = solarized_and_centred(r, g, b, row)
            if P != SIDE:
                a = _shrink_columns(shrink, 0, TILE, TILE)
                r, g, b = _sandwich(a, r), _sandwich(a, g), _sandwich(a, b)
        token_at = tokens + token * VALUES
        _store(token_at, tl.div_rn(r, STD_R), is_valid)
        _store(token_at + SIDE * SIDE, tl.div_rn(g, STD_G), is_valid)
        _store(token_at + 2 * SIDE * SIDE, tl.div_rn(b, STD_B), is_valid)


@triton.jit
def _mean_gray(sums, row, size, parts, PARTS: tl.constexpr):
    """Return the mean gray before contrast; 0 for a crop without jitter, which has no sums."""
    part, summed = tl.arange(0, PARTS), tl.where(tl.load(row + ORDER) >= 0, parts, 0)
    return tl.sum(tl.load(sums + part, mask=part < summed, other=0.0), 0) / (size * size)


@triton.jit
def _product_with_pixels(
    crop, row, mean, top, left, size, shrink,
    P: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return M x M^T for the KIND's matrix M and the pixels x of the patch, with halo if blurred.

    Takes sixteen rows of x at a time: exact products keep their operands in registers, which
    cannot hold all rows.
    """
    side: tl.constexpr = TILE if KIND == SOLARIZED else SIDE
    halo: tl.constexpr = 0 if KIND == PLAIN else HALO
    extent: tl.constexpr = P + 2 * halo
    sigma = tl.load(row + SIGMA)
    across = tl.trans(_matrix(shrink, sigma, 0, KIND, TILE, WIDE))
    r = tl.zeros((side, side), tl.float32)
    g, b = r, r
    for y in range(0, extent, SIDE):
        x_r, x_g, x_b = _pixels(
            crop, row, mean, top + y - halo, left - halo, size, extent - y, extent, WIDE
        )
        if KIND != SOLARIZED:
            x_r, x_g, x_b = solarized_and_centred(x_r, x_g, x_b, row)
        down = _matrix(shrink, sigma, y, KIND, TILE, SIDE)
        r = _product(down, _product(x_r, across), r)
        g = _product(down, _product(x_g, across), g)
        b = _product(down, _product(x_b, across), b)
    return r, g, b


@triton.jit
def _matrix(
    shrink, sigma, start, KIND: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Return WIDE columns, from `start`, of the KIND's matrix: shrink, blur and shrink, or blur."""
    if KIND == PLAIN:
        matrix = _shrink_columns(shrink, start, TILE, WIDE)
    else:
        matrix = _band(sigma, start, TILE, WIDE)
    if KIND == BLURRED:
        matrix = _product(_shrink_columns(shrink, 0, TILE, TILE), matrix)
    return matrix


@triton.jit
def _pixels(crop, row, mean, top, left, size, height, width, WIDE: tl.constexpr):
    """Return r, g, b, 16 x WIDE, after jitter and gray, from (top, left) of the flipped crop.

    Pixels are mirrored at the crop's borders, and zero beyond `height` and `width`.
    """
    y, x = tl.arange(0, SIDE), tl.arange(0, WIDE)
    rows, columns = _reflected(top + y, size), _reflected(left + x, size)
    columns = tl.where(tl.load(row + FLIP) > 0, size - 1 - columns, columns)
    inside = (y[:, None] < height) & (x[None, :] < width)
    r, g, b = load_levels(crop + (rows[:, None] * size + columns[None, :]) * 3, inside)
    r, g, b = jittered_and_gray(r, g, b, row, mean)
    return tl.where(inside, r, 0.0), tl.where(inside, g, 0.0), tl.where(inside, b, 0.0)


@triton.jit
def _reflected(index, size):
    """Mirror the index at the first and at the last pixel, without repeating them."""
    index = tl.abs(index)
    return tl.minimum(index, 2 * (size - 1) - index)


@triton.jit
def _shrink_columns(shrink, start, TILE: tl.constexpr, WIDE: tl.constexpr):
    """Load WIDE columns of the padded shrink matrix, from `start`."""
    i, j = tl.arange(0, SIDE)[:, None], start + tl.arange(0, WIDE)[None, :]
    return tl.load(shrink + i * TILE + j)


@triton.jit
def _band(sigma, start, TILE: tl.constexpr, WIDE: tl.constexpr):
    """Return band[i, j], the weight of input pixel start + j (halo included) in blurred pixel i."""
    total = tl.sum(_bell(tl.arange(0, 4 * HALO) - HALO, sigma), 0)
    i, j = tl.arange(0, TILE)[:, None], start + tl.arange(0, WIDE)[None, :]
    return _bell(j - i - HALO, sigma) / total


@triton.jit
def _bell(distance, sigma):
    z = distance.to(tl.float32) / sigma
    return tl.where(tl.abs(distance) <= HALO, tl.exp(-0.5 * z * z), 0.0)


@triton.jit
def _sandwich(m, x):
    """Return m x m^T."""
    return _product(m, _product(x, tl.trans(m)))


@triton.jit
def _product(a, b, plus=None):
    """Return a b + plus in float32, without TF32."""
    return tl.dot(a, b, plus, input_precision="ieee")


@triton.jit
def _store(channel_at, values, is_valid):
    i, j = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    values = tl.where(is_valid, values, float("nan"))
    tl.store(channel_at + i * SIDE + j, values.to(channel_at.dtype.element_ty))
