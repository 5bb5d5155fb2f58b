"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), vectorised in numpy.

Every draw of the pipeline is a pure function of (seed, epoch, sample, view, purpose). A draw does
not depend on the batch of the sample, the rank, the order of calls or a resume.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Purpose(IntEnum):
    """Purpose of a stream of numbers; streams with different purposes never overlap."""

    CROP = 0
    AUGMENT = 1
    DROP = 2
    ORDER = 3
    ROLES = 4


def philox4x32(counter: tuple[U64, U64, U64, U64], key: tuple[int, int]) -> tuple[U64, ...]:
    """Apply ten rounds to four arrays of 32-bit counters (held in uint64), under a 64-bit key."""
    c0, c1, c2, c3 = counter
    for round_ in range(10):
        k0 = np.uint64((key[0] + round_ * _WEYL[0]) & 0xFFFFFFFF)
        k1 = np.uint64((key[1] + round_ * _WEYL[1]) & 0xFFFFFFFF)
        m0, m1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (m1 >> _SHIFT) ^ c1 ^ k0, m1 & _LOW, (m0 >> _SHIFT) ^ c3 ^ k1, m0 & _LOW
    return c0, c1, c2, c3


def draw(
    seed: int, epoch: int, samples_N: NDArray[np.int64], view: int, purpose: Purpose, count: int
) -> U32:
    """Return `count` random 32-bit words for each sample id, shape (N, count).

    key = (seed, epoch); counter = (block of four words, view and purpose, sample id low and high).
    seed and epoch count modulo 2^32.
    """
    blocks = -(-count // 4)
    ids = samples_N.astype(np.uint64)[:, None]
    shape = (len(ids), blocks)
    counter = (
        np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape),
        np.full(shape, view << 8 | purpose, dtype=np.uint64),
        np.broadcast_to(ids & _LOW, shape),
        np.broadcast_to(ids >> _SHIFT, shape),
    )
    words = philox4x32(counter, (seed & 0xFFFFFFFF, epoch & 0xFFFFFFFF))
    return np.stack(words, axis=-1).reshape(len(ids), 4 * blocks)[:, :count].astype(np.uint32)


def uniform(words: U32) -> NDArray[np.float64]:
    """Map each word w to w / 2^32, a number in [0, 1) that float64 represents exactly."""
    return words * np.float64(2.0**-32)
