"""Definition of the crop against DALI's resize, loops and torchvision; the public function."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import functional as tv

from accelssl.pipeline.crop.crop import crop, unavailable
from accelssl.pipeline.crop.definition import crop_image, resized_image
from accelssl.pipeline.crop.images import Images
from accelssl.pipeline.draws.windows import central_windows

CPU = torch.device("cpu")
Image = NDArray[np.uint8]
SHAPES = [(1, 1), (3, 700), (500, 375), (20, 30), (900, 40), (300, 1300), (240, 240), (1, 50)]


def noise(height: int, width: int, rng: np.random.Generator) -> Image:
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def whole_windows(shapes: Sequence[tuple[int, int]], rng: np.random.Generator) -> NDArray[Any]:
    """Return a window on whole pixels in each image."""
    extents = np.array(shapes)
    low = rng.integers(0, extents)
    high = rng.integers(low + 1, extents + 1)
    return np.concatenate([low, high], axis=1).astype(np.float32)


def fractional_windows(shapes: Sequence[tuple[int, int]], rng: np.random.Generator) -> NDArray[Any]:
    """Return windows on fractions of pixels, at least half a pixel large."""
    extents = np.array(shapes)
    low = rng.random(extents.shape) * 0.5 * extents
    high = low + 0.5 + rng.random(extents.shape) * (extents - low - 0.5)
    windows = np.concatenate([low, high], axis=1).astype(np.float32)
    windows[:, 2:] = np.minimum(windows[:, 2:], extents)
    return windows


def images_of(images: Sequence[Image]) -> Images:
    return Images.of_tensors([torch.from_numpy(image) for image in images], CPU)


def resized_by_dali(images: list[Image], windows: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """Resize with DALI's fn.resize on the CPU."""
    dali: Any = pytest.importorskip("nvidia.dali")
    fn, types = dali.fn, dali.types
    pipeline = dali.Pipeline(batch_size=len(images), num_threads=1, device_id=None)
    corners = [np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:])]
    with pipeline:
        pipeline.set_outputs(
            fn.resize(
                fn.external_source(source=lambda: images, batch=True, layout="HWC"),
                size=(size, size),
                roi_start=fn.external_source(source=lambda: corners[0], batch=True),
                roi_end=fn.external_source(source=lambda: corners[1], batch=True),
                interp_type=types.INTERP_LINEAR,
                antialias=True,
                dtype=types.UINT8,
            )
        )
    pipeline.build()
    crops: NDArray[np.uint8] = pipeline.run()[0].as_array().copy()
    return crops


@pytest.mark.parametrize("size", [16, 61, 224, 240])
@pytest.mark.parametrize("windows_of", [whole_windows, fractional_windows])
def test_it_is_dalis_resize_to_one_level(windows_of: Any, size: int) -> None:
    seed = int(torch.randint(2**31, ()))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    images = [noise(*shape, rng) for shape in SHAPES]
    windows = windows_of(SHAPES, rng)
    expected = resized_by_dali(images, windows, size)
    (crops,) = crop(images_of(images), [windows], size).numpy()
    gap = np.abs(crops.astype(int) - expected)
    assert gap.max() <= 1
    assert (gap > 0).mean() < 0.01  # rounding of what lies in the middle, nothing else


def looped(image: Image, window: Sequence[float], size: int) -> NDArray[np.float64]:
    """Resize one pixel at a time, by the text of definition.py."""

    def taps(low: float, high: float, extent: int, output: int) -> list[tuple[int, float]]:
        scale = (high - low) / size
        centre, radius = low + (output + 0.5) * scale - 0.5, max(1.0, scale)
        near = range(int(centre - radius) - 2, int(centre + radius) + 3)
        pairs = [(at, max(0.0, 1 - abs(at - centre) / radius)) for at in near]
        total = sum(weight for _, weight in pairs)
        return [(min(max(at, 0), extent - 1), weight / total) for at, weight in pairs]

    top, left, bottom, right = window
    made = np.zeros((size, size, 3))
    for row in range(size):
        rows = taps(top, bottom, image.shape[0], row)
        for column in range(size):
            for x, across in taps(left, right, image.shape[1], column):
                for y, down in rows:
                    made[row, column] += across * down * image[y, x]
    return made


@pytest.mark.parametrize("window", [(3, 2, 33, 50), (0.25, 1.5, 12.125, 9.75), (0, 0, 34, 51)])
def test_it_is_what_loops_in_float64_give(window: tuple[float, ...]) -> None:
    image = noise(34, 51, np.random.default_rng(1))
    place = torch.tensor(window, dtype=torch.float32)
    exact = looped(image, window, 16)
    double = resized_image(torch.from_numpy(image), place, 16, torch.float64)
    single = resized_image(torch.from_numpy(image), place, 16, torch.float32)
    np.testing.assert_allclose(double, exact, rtol=0, atol=1e-9)
    np.testing.assert_allclose(single, exact, rtol=0, atol=1e-3)
    rounded = crop_image(torch.from_numpy(image), place, 16).numpy()
    assert np.abs(rounded - exact).max() <= 0.5 + 1e-3


def test_the_whole_image_is_resized_as_torchvision_does() -> None:
    """If the window is the image, no filter can read beyond its edge."""
    image = noise(250, 375, np.random.default_rng(2))
    (crops,) = crop(images_of([image]), [np.array([[0, 0, 250, 375]], dtype=np.float32)], 96)
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    theirs = tv.resize(pixels.double(), [96, 96], antialias=True).permute(1, 2, 0)
    # torchvision leaves out what lies beyond the image, where DALI repeats the edge.
    inside = slice(2, -2)
    gap = (crops[0].double() - theirs)[inside, inside].abs()
    assert float(gap.max()) <= 0.5 + 1e-6


def test_a_window_of_the_crops_size_is_copied() -> None:
    image = noise(60, 70, np.random.default_rng(3))
    window = np.array([[5, 9, 53, 57]], dtype=np.float32)
    crops = crop(images_of([image]), [window], 48)
    assert torch.equal(crops[0, 0], torch.from_numpy(image[5:53, 9:57]))


def test_a_single_colour_stays_as_it_is() -> None:
    image = np.full((400, 33, 3), (255, 0, 77), dtype=np.uint8)
    window = np.array([[0, 0, 400, 33], [399, 32, 400, 33]], dtype=np.float32)
    crops = crop(images_of([image, image]), [window, window[::-1].copy()], 21)
    assert crops.shape == (2, 2, 21, 21, 3)
    assert (crops == torch.tensor([255, 0, 77], dtype=torch.uint8)).all()


def test_views_and_images_lie_in_their_places() -> None:
    rng = np.random.default_rng(4)
    images = [noise(*shape, rng) for shape in SHAPES]
    views = [whole_windows(SHAPES, rng), fractional_windows(SHAPES, rng)]
    together = crop(images_of(images), torch.from_numpy(np.stack(views)), 32)
    for view, windows in enumerate(views):
        for i, image in enumerate(images):
            alone = crop(images_of([image]), [windows[i : i + 1]], 32)
            assert torch.equal(alone[0, 0], together[view, i])


@pytest.mark.parametrize(("views", "n"), [(0, 2), (2, 0), (0, 0)])
def test_nothing_gives_nothing(views: int, n: int) -> None:
    images = images_of([noise(5, 5, np.random.default_rng(0))] * n)
    crops = crop(images, torch.zeros(views, n, 4), 16)
    assert crops.shape == (views, n, 16, 16, 3) and crops.dtype == torch.uint8


def test_the_windows_of_evaluation_are_dalis_too() -> None:
    shapes = [(h, w) for h in (1, 2, 3, 231, 500) for w in (1, 7, 375, 1333)]
    rng = np.random.default_rng(6)
    images = [noise(*shape, rng) for shape in shapes]
    windows = central_windows(np.array(shapes))
    expected = resized_by_dali(images, windows, 224)
    (crops,) = crop(images_of(images), [windows], 224).numpy()
    assert np.abs(crops.astype(int) - expected).max() <= 1


# ---- what it refuses ----

GOOD = [0.0, 0.0, 5.0, 7.0]
NAN = float("nan")


@pytest.mark.parametrize(
    "window",
    [
        [0, 0, 0, 7],
        [3, 0, 2, 7],
        [0, 6, 5, 6],
        [-0.5, 0, 5, 7],
        [0, 0, 5.5, 7],
        [0, 0, 5, 8],
        [NAN, 0, 5, 7],
        [0, 0, float("inf"), 7],
    ],
)
def test_a_window_that_is_empty_or_outside_is_named(window: list[float]) -> None:
    image = noise(5, 7, np.random.default_rng(0))
    windows = torch.tensor([[GOOD, GOOD], [GOOD, window]])
    named = re.escape(f"window {windows[1, 1].tolist()} of view 1, image 1: need 0 <= top < bottom")
    with pytest.raises(ValueError, match=named):
        crop(images_of([image, image]), windows, 16)


def test_windows_of_another_kind_are_named() -> None:
    images = images_of([noise(5, 7, np.random.default_rng(0))])
    good = torch.tensor([GOOD])
    for bad, named in (
        (good.double(), r"view 1 are torch.float64 \(1, 4\)"),
        (good[:, :3], r"\(1, 3\)"),
        (torch.cat([good, good]), r"\(2, 4\)"),
        (good.to("meta"), "on a device"),
    ):
        with pytest.raises(ValueError, match=named):
            crop(images, [good, bad], 16)


@pytest.mark.parametrize("size", [0, 15, 513, -240, 16.0])
def test_a_size_outside_its_range_is_named(size: Any) -> None:
    images = images_of([noise(5, 7, np.random.default_rng(0))])
    with pytest.raises(ValueError, match=f"size {size}: need 16 to 512"):
        crop(images, torch.tensor([[GOOD]]), size)


def test_windows_that_are_no_arrays_are_refused_and_gradients_are_none_of_ours() -> None:
    images = images_of([noise(5, 7, np.random.default_rng(0))])
    with pytest.raises(ValueError, match="windows of view 0 are a tuple"):
        crop(images, [(0.0, 0.0, 5.0, 7.0)], 16)  # type: ignore[list-item]
    window = torch.tensor([[GOOD]])
    assert torch.equal(crop(images, window.requires_grad_(), 16), crop(images, window.detach(), 16))


def test_images_that_are_not_plain_are_named() -> None:
    good = torch.zeros(5, 7, 3, dtype=torch.uint8)
    for bad, named in (
        (good.float(), "image 1 is torch.float32"),
        (good[:, :, :1], r"\(5, 7, 1\)"),
        (good[:, ::2], "strides"),
        (good.to("meta"), "on meta"),
    ):
        with pytest.raises(ValueError, match=named):
            Images.of_tensors([good, bad], CPU)
    ptrs, sizes = torch.tensor([good.data_ptr()]), torch.tensor([[5, 7]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"sizes_N2 is torch.int64"):
        Images(ptrs, sizes.long(), CPU, good)
    with pytest.raises(ValueError, match=r"sizes_N2 is .*\(1, 2\).*\(2, 2\)"):
        Images(ptrs.repeat(2), sizes, CPU, good)
    with pytest.raises(ValueError, match="sizes run from 0 to 5"):
        Images(ptrs, sizes * torch.tensor([1, 0], dtype=torch.int32), CPU, good)


def test_other_devices_are_refused_and_the_cpu_is_not() -> None:
    memory = torch.zeros(5, 7, 3, dtype=torch.uint8, device="meta")
    images = Images.of_tensors([memory], torch.device("meta"))
    with pytest.raises(ValueError, match="images are on meta"):
        crop(images, torch.tensor([[GOOD]]), 16)
    assert unavailable(CPU) is None
    assert unavailable(torch.device("meta")) == "there is no kernel for meta"


# ---- where DALI's images lie ----


def decoded(images: list[Image]) -> Any:
    """Return a TensorListCPU of a DALI pipeline."""
    dali: Any = pytest.importorskip("nvidia.dali")
    pipeline = dali.Pipeline(batch_size=len(images), num_threads=1, device_id=None)
    with pipeline:
        source = dali.fn.external_source(source=lambda: images, batch=True, layout="HWC")
        pipeline.set_outputs(dali.fn.copy(source))
    pipeline.build()
    return pipeline.run()[0]


def test_images_are_found_in_dalis_list() -> None:
    rng = np.random.default_rng(5)
    pictures = [noise(*shape, rng) for shape in SHAPES]
    in_list = decoded(pictures)
    images = Images.of_dali(in_list, CPU)
    assert images.ptrs_N.tolist() == [in_list[i].data_ptr() for i in range(len(SHAPES))]
    assert images.sizes_N2.tolist() == [list(shape) for shape in SHAPES]
    windows = [whole_windows(SHAPES, rng)]
    assert torch.equal(crop(images, windows, 24), crop(images_of(pictures), windows, 24))


def test_images_that_lie_apart_are_found_too() -> None:
    dali: Any = pytest.importorskip("nvidia.dali")
    pictures = [noise(4, 6, np.random.default_rng(i)) for i in range(3)]
    tensors = [dali.tensors.TensorCPU(picture, layout="HWC") for picture in pictures]
    apart = dali.tensors.TensorListCPU(tensors, contiguous=False)
    images = Images.of_dali(apart, CPU)
    assert images.ptrs_N.tolist() == [picture.ctypes.data for picture in pictures]
    windows = [np.array([[0, 0, 4, 6]] * 3, dtype=np.float32)]
    assert torch.equal(crop(images, windows, 16), crop(images_of(pictures), windows, 16))


def test_an_image_of_one_channel_in_dalis_list_is_named() -> None:
    colour, gray = np.zeros((4, 6, 3), dtype=np.uint8), np.zeros((4, 6, 1), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"image 1 is \(4, 6, 1\)"):
        Images.of_dali(decoded([colour, gray]), CPU)
    dali: Any = pytest.importorskip("nvidia.dali")
    flat = dali.tensors.TensorListCPU([dali.tensors.TensorCPU(gray[..., 0])])
    with pytest.raises(ValueError, match=r"image 0 is \(4, 6\)"):
        Images.of_dali(flat, CPU)
