"""Steps of the augmentation as others do them, and pictures, which deviations.py compares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.draws.augmentation import Column

SIDE = 96
WINDOW = [23, 23]  # a tenth of a 224 px crop, the papers' window

Change = Callable[[ModuleType, Any], Any]
"""(torchvision.transforms.v2.functional, picture) -> picture: uint8 or float NCHW, or Pillow's."""


@dataclass(frozen=True)
class Step:
    """A step: the op's parameters, what does the same in torchvision, and why they differ.

    `pillow` is Pillow's own way, where it has one that torchvision's Pillow backend does not take.
    """

    name: str
    params: Mapping[Column, float]
    change: Change
    why: str
    pillow: Change | None = None


def _jitter(**values: float) -> dict[Column, float]:
    """Parameters of a jitter whose other steps do nothing, in the first order."""
    neutral = {Column.ORDER: 0.0, Column.HUE: 0.0}
    neutral |= dict.fromkeys((Column.BRIGHTNESS, Column.CONTRAST, Column.SATURATION), 1.0)
    return neutral | {Column[name.upper()]: value for name, value in values.items()}


def _adjust(name: str, value: float, why: str) -> Step:
    return Step(
        f"{name} {value:g}",
        _jitter(**{name: value}),
        lambda tv, picture: getattr(tv, f"adjust_{name}")(picture, value),
        why,
    )


def _blur(sigma: float, why: str) -> Step:
    return Step(
        f"blur, sigma {sigma:g}",
        {Column.SIGMA: sigma},
        lambda tv, picture: tv.gaussian_blur(picture, WINDOW, [sigma, sigma]),
        why,
        pillow=lambda tv, picture: picture.filter(ImageFilter.GaussianBlur(sigma)),
    )


def _solarized(tv: ModuleType, picture: Any) -> Any:
    is_float = getattr(getattr(picture, "dtype", None), "is_floating_point", False)
    return tv.solarize(picture, 0.5 if is_float else 128)


def _normalised(tv: ModuleType, picture: Any) -> Any:
    """Normalised as torchvision does, in float, and multiplied back to levels or to [0, 1]."""
    if isinstance(picture, Image.Image):
        return _normalised(tv, tv.pil_to_tensor(picture)).permute(1, 2, 0).numpy()
    floats = picture if picture.is_floating_point() else picture.float() / 255
    std, mean = (floats.new_tensor(x).view(3, 1, 1) for x in (IMAGENET_STD, IMAGENET_MEAN))
    back = tv.normalize(floats, list(IMAGENET_MEAN), list(IMAGENET_STD)) * std + mean
    return back if picture.is_floating_point() else back * 255


_JITTER = {"brightness": 1.37, "contrast": 0.63, "saturation": 1.31, "hue": -0.08}
_FLIP = Step(
    "flip",
    {Column.FLIP: 1},
    lambda tv, picture: tv.horizontal_flip(picture),
    "It only moves pixels.",
)
_CHAIN = (*(_adjust(name, value, "") for name, value in _JITTER.items()), _blur(1.3, ""), _FLIP)


def _chained(tv: ModuleType, picture: Any) -> Any:
    is_pillow = isinstance(picture, Image.Image)
    for step in _CHAIN:
        picture = (step.pillow if is_pillow and step.pillow else step.change)(tv, picture)
    return picture


_BRIGHTNESS = "In 8 bits, torchvision and Pillow cut off the fraction."
_CONTRAST = (
    "The same cut, and the mean gray comes from grays that were cut (torchvision) or is rounded "
    "itself (Pillow)."
)
_SATURATION = "The same cut, after one of the gray to blend with (Pillow rounds it)."
_HUE = (
    "torchvision turns in float and cuts in the end; Pillow's HSV has 256 hues and 256 saturations."
)
_GRAY = "torchvision cuts off the fraction; Pillow rounds, and weighs red with 0.299, not 0.2989."
_BLUR = (
    "torchvision rounds to 8 bits, and its 23 taps reach beyond the op's 17; Pillow blurs with "
    "three boxes and repeats the pixels at the border, where the rest mirrors them."
)

STEPS: tuple[Step, ...] = (
    *(_adjust("brightness", factor, _BRIGHTNESS) for factor in (0.6, 1.4)),
    *(_adjust("contrast", factor, _CONTRAST) for factor in (0.6, 1.4)),
    *(_adjust("saturation", factor, _SATURATION) for factor in (0.6, 1.4)),
    *(_adjust("hue", turn, _HUE) for turn in (-0.1, 0.1)),
    Step("gray", {Column.GRAY: 1}, lambda tv, picture: tv.rgb_to_grayscale(picture, 3), _GRAY),
    *(_blur(sigma, _BLUR) for sigma in (0.1, 0.5, 1.0, 2.0)),
    Step(
        "solarize",
        {Column.SOLARIZE: 1},
        _solarized,
        "All invert the levels from 128 on, and do it exactly.",
    ),
    _FLIP,
    Step("normalise", {}, _normalised, "All do it in float."),
    Step(
        "jitter, blur, flip",
        _jitter(**_JITTER) | {Column.SIGMA: 1.3, Column.FLIP: 1},
        _chained,
        "Cuts and rounding of each step, which the next ones enlarge; Pillow's blur and hue.",
    ),
)


def sample_pictures() -> NDArray[np.uint8]:
    """pictures_NHWC: smooth, noise, dark, bright, and blocks of saturated colours."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    waves = [
        np.sin(2 * np.pi * (a * x + b * y + c))
        for a, b, c in ((1, 2, 0), (2, 1, 0.3), (3, -1, 0.7))
    ]
    smooth = np.round(127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)
    noise = rng.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    blocks = rng.integers(0, 2, (SIDE // 8, SIDE // 8, 3)).repeat(8, 0).repeat(8, 1) * 255
    return np.stack([smooth, noise, noise // 8, 255 - noise // 8, blocks.astype(np.uint8)])
