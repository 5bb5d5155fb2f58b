"""CUDA source of the fused op: compiler options, generated constants and machine code."""

from typing import Any

import numpy as np

from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.shrink import interpolation
from accelssl.pipeline.cuda import nvrtc
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column

_SOURCES = (
    "augment_patchify.cu",
    "ptx.cuh",
    "colour.cuh",
    "output.cuh",
    "crop.cuh",
    "shrink.cuh",
    "blur.cuh",
)
# Patches that a block processes at a time; for p > 16 with a thread for each row of a patch.
_CHUNK = {16: 8, 20: 6, 24: 5, 30: 4, 40: 3, 48: 4}
# Chunks of a block, which fetches the bytes of the next chunk while it processes this one.
_CHUNKS = {16: 2, 20: 2, 24: 2, 30: 1, 40: 1, 48: 1}
# Blocks per multiprocessor, a bound on the registers of a thread.
_BLOCKS = {16: 8, 20: 5, 24: 5, 30: 5, 40: 5, 48: 3}
OUTPUTS = ("float32", "bfloat16", "float16")
GRAY_THREADS = 256
PARTS = 4
"""Blocks, and partial sums, for the mean gray of a crop."""


def tokens_per_block(p: int) -> int:
    """Return the tokens that a block makes; all belong to one crop."""
    return _CHUNK[p] * _CHUNKS[p]


def threads(p: int) -> int:
    """Return the threads of a block of the op, in whole warps."""
    return 128 if p == 16 else -(-p * _CHUNK[p] // 32) * 32


def shared_bytes(p: int) -> int:
    """Return the bytes of shared memory of a block; blur.cuh computes the same."""
    region = p + 2 * reference.BLUR_RADIUS
    fours = -(-region // 4)
    blur = 3 * region * 4 * (fours if fours % 2 else fours + 1)
    if p == 16:
        return 4 * blur
    unit_words = 4 if p == 48 else 2 if p % 8 == 0 else 1
    row_units = (3 * p + (2 if p % 4 else 0) + 3) // 4 // unit_words
    staged = p * (row_units | 1) * unit_words
    shrunk = 3 * ((20 * p + 15) // 32 * 32 + 16)
    return 4 * max(blur, _CHUNK[p] * (staged + shrunk))


def machine_code(p: int, output: str, architecture: str) -> bytes:
    """Return the kernels for one patch side and one of OUTPUTS, as nvrtc.machine_code does."""
    return nvrtc.machine_code(_texts(p), lambda known: options(p, output, known), architecture)


def is_cached(p: int, output: str, architecture: str) -> bool:
    """Tell if the disk cache has the kernels that machine_code returns for these arguments."""
    made = nvrtc.cached(_texts(p), lambda known: options(p, output, known), architecture)
    return made is not None


def _texts(p: int) -> dict[str, str]:
    texts = {name: nvrtc.source("accelssl.pipeline.compress", name) for name in _SOURCES}
    return texts | {"constants.cuh": constants(p)}


def options(p: int, output: str, architecture: str) -> tuple[str, ...]:
    """Return the compiler options for one patch side, output type and architecture."""
    return (
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--ftz=true",
        f"-DSIDE={p}",
        f"-DOUT={OUTPUTS.index(output)}",
        f"-DTHREADS={threads(p)}",
        f"-DCHUNK={_CHUNK[p]}",
        f"-DBLOCKS={_BLOCKS[p]}",
        f"-DGRAY_THREADS={GRAY_THREADS}",
        f"-DTOKENS={tokens_per_block(p)}",
        f"-DPARTS={PARTS}",
        f"-DSHARED_BYTES={shared_bytes(p)}",
    )


def constants(p: int) -> str:
    """Return the text of constants.cuh: the constants of the Python definition, as C++."""
    orders = [sum(int(c) << 8 * i for i, c in enumerate(order)) for order in JITTER_ORDERS]
    left, weight = _interpolation(p)
    lower, inverse_diagonal = _factors(p)
    columns = "".join(f"constexpr unsigned {c.name} = {c.value};\n" for c in Column)
    grays = zip(("RED", "GREEN", "BLUE"), reference.GRAY_WEIGHTS, strict=True)
    return (
        f"{columns}constexpr unsigned COLUMNS = {len(Column)};\n"
        f"constexpr int BLUR_RADIUS = {reference.BLUR_RADIUS};\n"
        + "".join(f"constexpr float GRAY_{name} = {_literal(w)};\n" for name, w in grays)
        + _array("unsigned", "JITTER_ORDERS", orders)
        + _array("float", "MEAN", reference.IMAGENET_MEAN)
        + _array("float", "STD", reference.IMAGENET_STD)
        + _array("int", "SHRINK_LEFT", left)
        + _array("float", "SHRINK_WEIGHT", weight)
        + _array("float", "SHRINK_LOWER", lower)
        + _array("float", "SHRINK_INVERSE_DIAGONAL", inverse_diagonal)
    )


def _interpolation(p: int) -> tuple[list[int], list[float]]:
    """Return for each row of B the column of its first value, and its second value.

    The two values of a row sum to one.
    """
    matrix = interpolation(16, p)
    left = np.minimum((matrix != 0).argmax(axis=1), 14)
    return left.tolist(), matrix[np.arange(p), left + 1].tolist()


def _factors(p: int) -> tuple[list[float], list[float]]:
    """Factor the tridiagonal B^T B = L D L^T. Return the values below L's diagonal, and 1 / D."""
    matrix = interpolation(16, p)
    gram = matrix.T @ matrix
    lower, diagonal = np.zeros(16), np.zeros(16)
    diagonal[0] = gram[0, 0]
    for j in range(1, 16):
        lower[j] = gram[j, j - 1] / diagonal[j - 1]
        diagonal[j] = gram[j, j] - lower[j] ** 2 * diagonal[j - 1]
    return lower.tolist(), (1 / diagonal).tolist()


def _array(kind: str, name: str, values: Any) -> str:
    items = ", ".join(_literal(v) if kind == "float" else str(int(v)) for v in values)
    return f"__device__ constexpr {kind} {name}[] = {{{items}}};\n"


def _literal(value: float) -> str:
    return f"{float(np.float32(value))!r}f"
