"""Definition of the fused op in plain torch, which also runs on machines without a GPU.

Legend of shape suffixes: N crops, C = 3 channels, H x W pixels, P augmentation parameters, L kept
patches, p x p pixels of a patch, V = 768 values per token, K taps of the blur, 1 a broadcast axis.

Colours are floats in [0, 1], clamped after each step of the jitter and never rounded: torchvision's
float semantics (hue in HSV, contrast about the crop's mean gray, blur with reflected borders). The
op computes in float32. Tests compare its implementations with this definition in float64.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.pipeline.compress.shrink import shrink_matrix
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GRAY_WEIGHTS = (0.2989, 0.587, 0.114)
# 17 taps: four standard deviations of the widest blur (2 px); they leave out 6e-5 of the weight.
BLUR_RADIUS = 8


def augment_patchify(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Augment, normalise, cut, keep and shrink to 16 x 16 in `dtype`. Return tokens_NLV."""
    images_NCHW = normalise(augment(crops_NHWC, params_NP, dtype))
    return shrink(kept_patches(images_NCHW, keep_idx_NL, p))


def augment(crops_NHWC: Tensor, params_NP: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Jitter, gray, blur, solarize and flip by params_NP. Return images_NCHW in [0, 1]."""
    params_NP = params_NP.to(dtype)
    images = crops_NHWC.permute(0, 3, 1, 2).contiguous().to(dtype) / 255
    jitter(images, params_NP)
    _where(images, params_NP[:, Column.GRAY], lambda group: gray(group).expand_as(group))
    blur(images, params_NP[:, Column.SIGMA])
    _where(images, params_NP[:, Column.SOLARIZE], solarize)
    _where(images, params_NP[:, Column.FLIP], lambda group: group.flip(-1))
    return images


def _where(images_NCHW: Tensor, flag_N: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    chosen = flag_N > 0
    images_NCHW[chosen] = change(images_NCHW[chosen])


def jitter(images_NCHW: Tensor, params_NP: Tensor) -> None:
    """Jitter colours in place, grouping the samples with the same order of the four steps."""
    orders = params_NP[:, Column.ORDER]
    for order in sorted(set(orders.tolist())):
        if order >= 0:
            chosen = orders == order
            group, params = images_NCHW[chosen], params_NP[chosen]
            for column in JITTER_ORDERS[int(order)]:
                group = _JITTER[column](group, params[:, column, None, None, None])
            images_NCHW[chosen] = group


def adjust_brightness(images_NCHW: Tensor, factor_N111: Tensor) -> Tensor:
    """Blend with black, as torchvision's adjust_brightness."""
    return (images_NCHW * factor_N111).clamp_(0, 1)


def adjust_contrast(images_NCHW: Tensor, factor_N111: Tensor) -> Tensor:
    """Blend with the mean gray of the crop, as torchvision's adjust_contrast."""
    mean = gray(images_NCHW).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images_NCHW, factor_N111).clamp_(0, 1)


def adjust_saturation(images_NCHW: Tensor, factor_N111: Tensor) -> Tensor:
    """Blend with the gray of each pixel, as torchvision's adjust_saturation."""
    return torch.lerp(gray(images_NCHW), images_NCHW, factor_N111).clamp_(0, 1)


def adjust_hue(images_NCHW: Tensor, turn_N111: Tensor) -> Tensor:
    """Turn the hue of HSV by a fraction of the circle, as torchvision's adjust_hue.

    Value v and chroma c do not change. With h in sixths of the circle, channel n (5 red, 3 green,
    1 blue) is v - c clamp(min(k, 4 - k), 0, 1), k = (n + h) mod 6, without HSV's six cases.
    """
    r, g, b = images_NCHW.unbind(1)
    v, chroma = images_NCHW.amax(1), images_NCHW.amax(1) - images_NCHW.amin(1)
    safe = torch.where(chroma > 0, chroma, 1)
    h = torch.where(v == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    h = torch.where(v == r, (g - b) / safe, h)
    n_C11 = torch.tensor([5.0, 3.0, 1.0], dtype=v.dtype, device=v.device).view(3, 1, 1)
    k = (h[:, None] + n_C11 + 6 * turn_N111).remainder_(6)
    return v[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)


_JITTER: dict[Column, Callable[[Tensor, Tensor], Tensor]] = {
    Column.BRIGHTNESS: adjust_brightness,
    Column.CONTRAST: adjust_contrast,
    Column.SATURATION: adjust_saturation,
    Column.HUE: adjust_hue,
}


def gray(images_NCHW: Tensor) -> Tensor:
    """Return one channel of gray, as torchvision's rgb_to_grayscale."""
    r, g, b = images_NCHW.unbind(1)
    red, green, blue = GRAY_WEIGHTS
    return (r * red).add_(g, alpha=green).add_(b, alpha=blue)[:, None]


def solarize(images_NCHW: Tensor) -> Tensor:
    """Invert values that would round to 128 or more, Pillow's threshold."""
    return torch.where(images_NCHW >= 0.5, 1 - images_NCHW, images_NCHW)


def blur(images_NCHW: Tensor, sigma_N: Tensor) -> None:
    """Blur in place, as torchvision's gaussian_blur, with a sigma per sample (0: no blur)."""
    chosen = sigma_N > 0
    if not chosen.any():
        return
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=sigma_N.device)
    weights_NK = torch.exp(-0.5 * (offsets / sigma_N[chosen, None]) ** 2)
    weights_NK = weights_NK / weights_NK.sum(1, keepdim=True)
    group = images_NCHW[chosen]
    n, c, height, width = group.shape
    taps = weights_NK.repeat_interleave(c, 0)[:, None, None]
    planes = F.pad(group.view(1, n * c, height, width), [BLUR_RADIUS] * 4, mode="reflect")
    rows = F.conv2d(planes, taps, groups=n * c)
    images_NCHW[chosen] = F.conv2d(rows, taps.mT, groups=n * c).view(group.shape)


def normalise(images_NCHW: Tensor) -> Tensor:
    """Normalise in place by ImageNet's mean and standard deviation."""
    mean, std = (images_NCHW.new_tensor(x) for x in (IMAGENET_MEAN, IMAGENET_STD))
    return images_NCHW.sub_(mean.view(3, 1, 1)).div_(std.view(3, 1, 1))


def kept_patches(images_NCHW: Tensor, keep_idx_NL: Tensor, p: int) -> Tensor:
    """Return the kept p x p patches as patches_NLCpp; keep_idx counts the grid row by row."""
    n, c, height, width = images_NCHW.shape
    grid = images_NCHW.view(n, c, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
    row, column = keep_idx_NL // (width // p), keep_idx_NL % (width // p)
    return grid[torch.arange(n, device=row.device)[:, None], row, column]


def shrink(patches_NLCpp: Tensor) -> Tensor:
    """Return tokens_NLV in the order of a flattened convolution weight: channel, row, column."""
    p = patches_NLCpp.shape[-1]
    matrix = _shrink_tensor(p, patches_NLCpp.dtype, patches_NLCpp.device)
    small = patches_NLCpp if p == 16 else matrix @ patches_NLCpp @ matrix.T
    return small.flatten(2)


@cache
def _shrink_tensor(p: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(shrink_matrix(p), dtype=dtype, device=device)
