"""Draw crop windows, the rectangles that views cut from images of given sizes."""

import math

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.draws.philox import Purpose, draw, uniform
from accelssl.pipeline.views import View

ATTEMPTS = 10
SHORT_SIDE, CENTRE = 256, 224
"""Pixels in evaluation: the short side of the resized image, and the side of its central crop."""
Windows = NDArray[np.float32]


def random_windows(
    view: View,
    index: int,
    seed: int,
    epoch: int,
    samples_N: NDArray[np.int64],
    sizes_N2: NDArray[np.int64],
) -> Windows:
    """Return windows_N4 with the distribution of torchvision's RandomResizedCrop.

    A window is (top, left, bottom, right) in whole pixels; sizes_N2 holds (height, width). Of ten
    draws of an area fraction and a log-uniform aspect, the first that fits is used. If none fits,
    the window is the largest central one of an allowed aspect.
    """
    u = uniform(draw(seed, epoch, samples_N, index, Purpose.CROP, 2 * ATTEMPTS + 2))
    height, width = sizes_N2[:, :1].astype(float), sizes_N2[:, 1:].astype(float)
    low, high = view.scale
    area = height * width * (low + u[:, :ATTEMPTS] * (high - low))
    log_low, log_high = math.log(view.ratio[0]), math.log(view.ratio[1])
    aspect = np.exp(log_low + u[:, ATTEMPTS : 2 * ATTEMPTS] * (log_high - log_low))
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.argmax(axis=1)[:, None]
    w, h = np.take_along_axis(w, first, 1), np.take_along_axis(h, first, 1)
    top = np.floor(u[:, -2:-1] * (height - h + 1))
    left = np.floor(u[:, -1:] * (width - w + 1))
    window = np.hstack([top, left, top + h, left + w])
    fallback = _largest_window(view.ratio, height, width)
    return np.where(fits.any(axis=1)[:, None], window, fallback).astype(np.float32)


def _largest_window(
    ratio: tuple[float, float], height: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.float64]:
    narrow, wide = width / height < ratio[0], width / height > ratio[1]
    h = np.where(narrow, np.rint(width / ratio[0]), height)
    w = np.where(wide, np.rint(height * ratio[1]), width)
    top, left = np.floor((height - h) / 2), np.floor((width - w) / 2)
    return np.hstack([top, left, top + h, left + w])


def central_windows(
    sizes_N2: NDArray[np.int64], short: int = SHORT_SIDE, size: int = CENTRE
) -> Windows:
    """Return windows_N4 for evaluation: the centre of the image resized to a short side `short`.

    The windows equal those of torchvision's Resize and CenterCrop to a fraction of a pixel. Both
    round the long side and the position of the crop to whole pixels of the resized image.
    """
    extents_N2 = sizes_N2.astype(np.int64)
    shortest_N1 = extents_N2.min(axis=1, keepdims=True)
    resized_N2 = short * extents_N2 // shortest_N1
    low_N2 = np.rint((resized_N2 - size) / 2)
    scale_N2 = extents_N2 / resized_N2
    return np.hstack([low_N2 * scale_N2, (low_N2 + size) * scale_N2]).astype(np.float32)
