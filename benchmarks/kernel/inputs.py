"""Inputs of the kernel benchmark, and the bytes that the op cannot help moving.

N crops, L kept patches, P columns of parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.pipeline import views
from accelssl.pipeline.compress.reference import BLUR_RADIUS
from accelssl.pipeline.compression import CHANNELS, TOKEN_VALUES, Compression
from accelssl.pipeline.draws.augmentation import Column, augmentation, identity
from accelssl.pipeline.draws.drops import kept_patches

Kind = Literal["moves", "no blur", "blur"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""moves: flips alone. no blur: SimCLR's view without its blur. blur: SimCLR's view."""
SIZE = 240
DTYPE = torch.bfloat16
MOST_SETS = 24


@dataclass(frozen=True)
class Inputs:
    """One batch of inputs of the op, on the device."""

    crops_NHWC: Tensor
    params_NP: Tensor
    keep_idx_NL: Tensor


class InputPool:
    """Sets of inputs for batches of `crops` crops: random bytes and SimCLR's own draws."""

    def __init__(self, crops: int, device: torch.device) -> None:
        self._crops, self._device = crops, device
        # 4 times the L2 cache must pass through between a set and its next use.
        on_gpu = device.type == "cuda"
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size if on_gpu else 0
        self._cycle_bytes = 4 * cache_bytes
        self._pixels: list[Tensor] = []

    def sets(self, compression: Compression, kind: Kind) -> list[Inputs]:
        """Return 2 to MOST_SETS sets, enough that no input stays in the L2 cache."""
        first = self._set(compression, kind, 0)
        needed = -(-self._cycle_bytes // moved_bytes(first, compression.p))
        others = range(1, min(max(2, needed), MOST_SETS))
        return [first, *(self._set(compression, kind, number) for number in others)]

    def _set(self, compression: Compression, kind: Kind, number: int) -> Inputs:
        while len(self._pixels) <= number:
            shape = (self._crops, SIZE, SIZE, CHANNELS)
            generator = torch.Generator(self._device).manual_seed(len(self._pixels))
            self._pixels.append(
                torch.randint(
                    0, 256, shape, dtype=torch.uint8, device=self._device, generator=generator
                )
            )
        params, keep_idx = (
            _params(self._crops, kind, number),
            _keep(self._crops, compression, number),
        )
        return Inputs(self._pixels[number], params.to(self._device), keep_idx.to(self._device))


@cache
def _params(crops: int, kind: Kind, epoch: int) -> Tensor:
    view, samples = views.simclr(SIZE)[0], np.arange(crops)
    params = augmentation(view, 0, 0, epoch, samples)
    if kind == "moves":
        flips = params[:, Column.FLIP]
        params = identity(crops)
        params[:, Column.FLIP] = flips
    if kind == "no blur":
        params[:, Column.SIGMA] = 0
    return torch.from_numpy(params)


@cache
def _keep(crops: int, compression: Compression, epoch: int) -> Tensor:
    patches, keep = compression.grid(SIZE) ** 2, compression.keep(SIZE)
    return torch.from_numpy(kept_patches(0, epoch, np.arange(crops), 0, patches, keep))


def moved_bytes(inputs: Inputs, p: int, dtype: torch.dtype = DTYPE) -> int:
    """Count the bytes any implementation moves: the inputs it reads, each once, and its output.

    The mean gray of a jittered crop needs all of the crop.
    """
    size = inputs.crops_NHWC.shape[1]
    pixels_N = pixels_read(inputs.params_NP, inputs.keep_idx_NL, p, size)
    rest = (inputs.params_NP, inputs.keep_idx_NL)
    written = inputs.keep_idx_NL.numel() * TOKEN_VALUES * dtype.itemsize
    return int(pixels_N.sum()) * CHANNELS + sum(x.numel() * x.itemsize for x in rest) + written


def mean_moved_bytes(sets: Sequence[Inputs], p: int) -> int:
    return round(sum(moved_bytes(inputs, p) for inputs in sets) / len(sets))


def pixels_read(params_NP: Tensor, keep_idx_NL: Tensor, p: int, size: int) -> Tensor:
    """pixels_N, int64: all of a jittered crop, else the kept patches, with their halo if blurred.

    Flipping mirrors patches and halo alike, so it changes no count.
    """
    n, side = len(keep_idx_NL), size // p
    kept = torch.zeros(n, side * side, dtype=torch.bool, device=keep_idx_NL.device)
    kept = kept.scatter_(1, keep_idx_NL, True).view(n, side, side)
    pixels_N = kept.sum((1, 2)) * p * p
    with_halo = (params_NP[:, Column.SIGMA] > 0) & (params_NP[:, Column.ORDER] < 0)
    pixels_N[with_halo] = _area_with_halo(kept[with_halo], p)
    pixels_N[params_NP[:, Column.ORDER] >= 0] = size * size
    return pixels_N


def _area_with_halo(kept_NSS: Tensor, p: int) -> Tensor:
    """Pixels at most BLUR_RADIUS from a kept patch. What lies outside a crop is mirrored into it,
    onto pixels of the patch at the border itself."""
    pixels = kept_NSS.repeat_interleave(p, 1).repeat_interleave(p, 2)[:, None].float()
    width, padding = 2 * BLUR_RADIUS + 1, BLUR_RADIUS
    pixels = F.max_pool2d(pixels, (width, 1), 1, (padding, 0))
    pixels = F.max_pool2d(pixels, (1, width), 1, (0, padding))
    return pixels.bool().sum((1, 2, 3))
