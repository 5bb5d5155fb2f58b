"""Colours of the definition against torchvision on 8-bit pictures, within two levels."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from PIL import Image, ImageOps
from torch import Tensor

from accelssl.pipeline.compress.reference import augment
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column, identity

LEVELS = 2.0


@pytest.fixture(scope="module")
def crops_NHWC() -> Tensor:
    """Return colourful crops: smooth, noisy, dark and bright ones."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (4, 7, 7, 3)).astype(np.uint8)
    bicubic = Image.Resampling.BICUBIC
    smooth = [np.asarray(Image.fromarray(c).resize((96, 96), bicubic)) for c in coarse]
    noisy = rng.integers(0, 256, (1, 96, 96, 3)).astype(np.uint8)
    stack = np.concatenate([np.stack(smooth), noisy, noisy // 8, 255 - noisy // 8])
    return torch.from_numpy(stack)


def changed(crops_NHWC: Tensor, column: Column, value: float) -> Tensor:
    """Return the definition with one column set, in 8-bit levels, NCHW."""
    params = torch.from_numpy(identity(len(crops_NHWC)))
    if column in (Column.BRIGHTNESS, Column.CONTRAST, Column.SATURATION, Column.HUE):
        params[:, Column.ORDER] = 0
        params[:, Column.BRIGHTNESS : Column.HUE] = 1
    params[:, column] = value
    return augment(crops_NHWC, params) * 255


def gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs.float()).abs().max())


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.4])
@pytest.mark.parametrize(
    ("column", "theirs"),
    [
        (Column.BRIGHTNESS, tv.adjust_brightness),
        (Column.CONTRAST, tv.adjust_contrast),
        (Column.SATURATION, tv.adjust_saturation),
    ],
)
def test_brightness_contrast_and_saturation_are_torchvisions(
    crops_NHWC: Tensor, column: Column, theirs: Callable[[Tensor, float], Tensor], factor: float
) -> None:
    expected = theirs(crops_NHWC.permute(0, 3, 1, 2), factor)
    assert gap(changed(crops_NHWC, column, factor), expected) <= LEVELS


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.05, 0.1, 0.33])
def test_hue_is_torchvisions_turn_in_hsv(crops_NHWC: Tensor, turn: float) -> None:
    expected = tv.adjust_hue(crops_NHWC.permute(0, 3, 1, 2).float() / 255, turn) * 255
    assert gap(changed(crops_NHWC, Column.HUE, turn), expected) <= 0.1


def test_hue_leaves_grays_alone() -> None:
    grays = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    assert gap(changed(grays, Column.HUE, 0.1), grays.permute(0, 3, 1, 2)) < 1e-3


def test_grayscale_is_torchvisions(crops_NHWC: Tensor) -> None:
    expected = tv.rgb_to_grayscale(crops_NHWC.permute(0, 3, 1, 2), num_output_channels=3)
    assert gap(changed(crops_NHWC, Column.GRAY, 1), expected) <= LEVELS


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_blur_is_torchvisions_at_a_tenth_of_the_crop(crops_NHWC: Tensor, sigma: float) -> None:
    expected = tv.gaussian_blur(crops_NHWC.permute(0, 3, 1, 2), [23, 23], [sigma, sigma])
    assert gap(changed(crops_NHWC, Column.SIGMA, sigma), expected) <= LEVELS


def test_solarize_is_pillows(crops_NHWC: Tensor) -> None:
    ours = changed(crops_NHWC, Column.SOLARIZE, 1)
    for picture, image in zip(crops_NHWC, ours, strict=True):
        expected = np.asarray(ImageOps.solarize(Image.fromarray(picture.numpy())))
        assert gap(image.permute(1, 2, 0), torch.from_numpy(expected.copy())) < 1e-3


def test_flip_mirrors_left_and_right(crops_NHWC: Tensor) -> None:
    expected = tv.horizontal_flip(crops_NHWC.permute(0, 3, 1, 2))
    assert gap(changed(crops_NHWC, Column.FLIP, 1), expected) < 1e-3


def test_every_order_of_jitter_then_gray_blur_solarize_flip_is_torchvisions_chain(
    crops_NHWC: Tensor,
) -> None:
    """Compare with torchvision in float, so that only order and semantics can differ."""
    image = crops_NHWC[:1].permute(0, 3, 1, 2).float() / 255
    steps = {
        Column.BRIGHTNESS: (tv.adjust_brightness, 1.37),
        Column.CONTRAST: (tv.adjust_contrast, 0.63),
        Column.SATURATION: (tv.adjust_saturation, 1.31),
        Column.HUE: (tv.adjust_hue, -0.08),
    }
    for number, order in enumerate(JITTER_ORDERS):
        params = torch.from_numpy(identity(1))
        params[0, Column.ORDER] = number
        for column, (_, value) in steps.items():
            params[0, column] = value
        params[0, Column.SIGMA], params[0, Column.FLIP] = 1.3, 1
        expected = image
        for column in order:
            change, value = steps[column]
            expected = change(expected, value)
        expected = tv.horizontal_flip(tv.gaussian_blur(expected, [23, 23], [1.3, 1.3]))
        assert gap(augment(crops_NHWC[:1], params) * 255, expected * 255) <= 0.1


def test_jitter_gray_blur_and_solarize_are_torchvisions_in_this_order_and_in_no_other(
    crops_NHWC: Tensor,
) -> None:
    """Gray and blur are linear, so exchanging these two neighbours changes nothing."""
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "jitter": lambda image: tv.adjust_hue(
            tv.adjust_saturation(tv.adjust_brightness(image, 1.5), 1.3), 0.09
        ),
        "gray": lambda image: tv.rgb_to_grayscale(image, num_output_channels=3),
        "blur": lambda image: tv.gaussian_blur(image, [17, 17], [1.6, 1.6]),
        "solarize": lambda image: tv.solarize(image, 0.5),
    }
    strengths = {Column.BRIGHTNESS: 1.5, Column.CONTRAST: 1, Column.SATURATION: 1.3}
    switches = {Column.HUE: 0.09, Column.GRAY: 1, Column.SIGMA: 1.6, Column.SOLARIZE: 1}
    params = torch.from_numpy(identity(1))
    params[0, Column.ORDER] = 0  # brightness, contrast, saturation, hue
    for column, value in (strengths | switches).items():
        params[0, column] = value
    ours = augment(crops_NHWC[:1], params) * 255
    fitting = set()
    for order in permutations(steps):
        image = crops_NHWC[:1].permute(0, 3, 1, 2).float() / 255
        for name in order:
            image = steps[name](image)
        error = gap(ours, image * 255)
        assert error <= 0.1 or error > 5
        if error <= 0.1:
            fitting.add(order)
    assert fitting == {
        ("jitter", "gray", "blur", "solarize"),
        ("jitter", "blur", "gray", "solarize"),
    }


def test_samples_of_a_batch_do_not_touch_each_other(crops_NHWC: Tensor) -> None:
    rng = np.random.default_rng(1)
    params = torch.from_numpy(identity(len(crops_NHWC)))
    params[:, Column.ORDER] = torch.from_numpy(rng.integers(-1, 24, len(params)).astype(np.float32))
    params[:, Column.BRIGHTNESS : Column.HUE] = torch.from_numpy(
        rng.uniform(0.6, 1.4, (len(params), 3)).astype(np.float32)
    )
    params[:, Column.HUE], params[::2, Column.SIGMA], params[1::3, Column.GRAY] = 0.07, 0.9, 1
    together = augment(crops_NHWC, params)
    for i in range(len(params)):
        alone = augment(crops_NHWC[i : i + 1], params[i : i + 1])[0]
        torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-6)
