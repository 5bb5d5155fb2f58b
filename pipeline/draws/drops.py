"""Draw the kept patches: a uniformly random subset for each sample (paper, section 4.1)."""

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.draws.philox import Purpose, draw


def kept_patches(
    seed: int, epoch: int, samples_N: NDArray[np.int64], view: int, patches: int, keep: int
) -> NDArray[np.int64]:
    """Return keep_idx_NL: for each sample `keep` of `patches` row-major indices, ascending.

    The patches with the smallest random words are kept. The index breaks ties, so the result does
    not depend on the sorting algorithm. A larger `keep` only adds patches.
    """
    if keep == patches:
        return np.broadcast_to(np.arange(patches), (len(samples_N), patches)).copy()
    words = draw(seed, epoch, samples_N, view, Purpose.DROP, patches)
    ranked = words.astype(np.uint64) << np.uint64(16) | np.arange(patches, dtype=np.uint64)
    kept = np.argpartition(ranked, keep - 1, axis=1)[:, :keep]
    return np.sort(kept, axis=1).astype(np.int64)
