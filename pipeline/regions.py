"""What of an image its views see, so that a decoder makes no more of it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.windows import Windows


def seen_regions(
    windows: Sequence[Windows], sides: Sequence[int], reach: int, sizes_N2: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """begin_N2 (top, left) and extent_N2 (height, width) of the smallest part of each image that
    holds what its windows show, in crops of these sides.

    Resizing sees more than a window: `reach` pixels of the crop beyond it, or of the image where
    these are larger. Without windows a region is the whole image.
    """
    if not windows:
        return np.zeros(sizes_N2.shape, dtype=np.int32), sizes_N2.astype(np.int32)
    low_VN2, high_VN2 = np.split(np.stack(windows).astype(np.float64), 2, axis=2)
    scale_VN2 = (high_VN2 - low_VN2) / np.array(sides)[:, None, None]
    beyond_VN2 = np.ceil(reach * np.maximum(scale_VN2, 1)) + 1  # one more for what is rounded
    begin_N2 = np.floor(low_VN2 - beyond_VN2).min(axis=0).clip(0)
    end_N2 = np.minimum(np.ceil(high_VN2 + beyond_VN2).max(axis=0), sizes_N2)
    return begin_N2.astype(np.int32), (end_N2 - begin_N2).astype(np.int32)
