"""The crop's definition, in PyTorch: what the CUDA kernel is held to.

A window is resized as NVIDIA DALI's fn.resize does with antialias, a region and linear
interpolation. Along an axis, output i has its centre at low + (i + 1/2) scale - 1/2 in pixels of
the image, scale = (high - low) / size. A pixel's weight falls from the centre on in a straight
line, to 0 at a distance of max(1, scale) pixels; the weights of an output are then scaled to a sum
of 1. The filter sees the image's pixels beyond the window; beyond the image it sees the nearest.
"""

import torch
from torch import Tensor


def crop_image(
    image_HWC: Tensor, window_4: Tensor, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The window (top, left, bottom, right) of a uint8 image as uint8 crop_HWC, size x size.

    Computed in `dtype` and rounded once, to the nearest (even in the middle).
    """
    return resized_image(image_HWC, window_4, size, dtype).round().clamp(0, 255).to(torch.uint8)


def resized_image(image_HWC: Tensor, window_4: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The same before it is rounded: crop_HWC in `dtype`."""
    top, left, bottom, right = window_4.tolist()
    y, rows = weights(top, bottom, image_HWC.shape[0], size, dtype)
    x, columns = weights(left, right, image_HWC.shape[1], size, dtype)
    seen = image_HWC[y : y + rows.shape[1], x : x + columns.shape[1]].to(dtype)
    shrunk = torch.tensordot(rows, seen, dims=([1], [0]))
    return torch.einsum("ywc,xw->yxc", shrunk, columns)


def weights(
    low: float, high: float, extent: int, size: int, dtype: torch.dtype
) -> tuple[int, Tensor]:
    """For one axis: the first pixel that any output sees, and weights (size, pixels from it on)."""
    # Places in float64 whatever the dtype: far from the origin float32 keeps too few digits.
    scale = (high - low) / size
    radius = max(1.0, scale)
    centres = low + (torch.arange(size, dtype=torch.float64) + 0.5) * scale - 0.5
    taps = torch.ceil(centres - radius)[:, None] + torch.arange(int(2 * radius) + 1)
    weight = (1 - (taps - centres[:, None]).abs() / radius).clamp(min=0)
    weight /= weight.sum(dim=1, keepdim=True)
    pixels = taps.clamp(0, extent - 1).long()
    first, last = int(pixels.min()), int(pixels.max())
    matrix = torch.zeros(size, last + 1 - first, dtype=torch.float64)
    return first, matrix.scatter_add_(1, pixels - first, weight).to(dtype)
