"""Definition of the crop in PyTorch; tests compare the CUDA kernel with it.

Legend of shape suffixes: H x W pixels of an image or crop, C = 3 channels, 4 corners of a window.

A window is resized as by NVIDIA DALI's fn.resize with antialias, a region and linear interpolation.
Along an axis, the centre of output i is low + (i + 1/2) scale - 1/2 in pixels of the image, with
scale = (high - low) / size. The weight of a pixel falls linearly from the centre to 0 at a distance
of max(1, scale) pixels. The weights of an output are then scaled to a sum of 1. The filter reads
pixels of the image beyond the window; beyond the image it repeats the nearest pixel.
"""

import torch
from torch import Tensor


def crop_image(
    image_HWC: Tensor, window_4: Tensor, size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Resize the window (top, left, bottom, right) of a uint8 image to uint8 crop_HWC.

    The crop is size x size, computed in `dtype` and rounded once (half to even).
    """
    return resized_image(image_HWC, window_4, size, dtype).round().clamp(0, 255).to(torch.uint8)


def resized_image(image_HWC: Tensor, window_4: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return crop_HWC of crop_image before it is rounded, in `dtype`."""
    top, left, bottom, right = window_4.tolist()
    y, rows = weights(top, bottom, image_HWC.shape[0], size, dtype)
    x, columns = weights(left, right, image_HWC.shape[1], size, dtype)
    seen = image_HWC[y : y + rows.shape[1], x : x + columns.shape[1]].to(dtype)
    shrunk = torch.tensordot(rows, seen, dims=([1], [0]))
    return torch.einsum("ywc,xw->yxc", shrunk, columns)


def weights(
    low: float, high: float, extent: int, size: int, dtype: torch.dtype
) -> tuple[int, Tensor]:
    """Return the first pixel that one axis reads, and the weights (size, pixels) from it on."""
    # Positions are float64 for every dtype: far from the origin float32 has too few digits.
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
