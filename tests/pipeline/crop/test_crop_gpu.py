"""Crop kernel on a GPU: the definition's values, every byte written, on the current stream."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from accelssl.pipeline.crop import kernel_source
from accelssl.pipeline.crop.crop import crop, unavailable
from accelssl.pipeline.crop.definition import resized_image
from accelssl.pipeline.crop.images import Images
from accelssl.pipeline.draws.windows import central_windows, random_windows
from accelssl.pipeline.views import View

pytestmark = pytest.mark.gpu
Windows = NDArray[np.float32]
SHAPES = [(500, 375), (375, 500), (1, 1), (3, 700), (700, 2), (33, 1300), (2600, 61), (240, 240)]


def noise(shapes: Sequence[tuple[int, int]], seed: int) -> list[Tensor]:
    """Return random images with addresses of all alignments."""
    rng = np.random.default_rng(seed)
    images = []
    for i, (height, width) in enumerate(shapes):
        count = height * width * 3
        memory = torch.from_numpy(rng.integers(0, 256, count + 8, dtype=np.uint8)).cuda()
        images.append(memory[i % 8 : i % 8 + count].view(height, width, 3))
    return images


def of(images: list[Tensor]) -> Images:
    return Images.of_tensors(images, images[0].device)


def drawn(shapes: Sequence[tuple[int, int]], seed: int) -> Windows:
    view = View("v", 240, scale=(0.05, 1.0))
    return random_windows(view, 0, seed, 0, np.arange(len(shapes)), np.array(shapes))


def assert_as_defined(
    crops: Tensor, images: list[Tensor], windows: Sequence[Windows], within: float = 1e-4
) -> None:
    """Check that crops are the float64 values rounded, to a few thousandths at the halves."""
    for view, windows_N4 in enumerate(windows):
        for i, image in enumerate(images):
            window = torch.from_numpy(windows_N4[i])
            exact = resized_image(image.cpu(), window, crops.shape[2], torch.float64)
            error = float((crops[view, i].cpu().double() - exact).abs().max())
            assert error < 0.5 + within, (view, tuple(image.shape), window.tolist(), error)


def test_there_is_a_kernel() -> None:
    assert unavailable(torch.device("cuda")) is None


@pytest.mark.parametrize("size", [16, 61, 224, 240, 512])
def test_it_computes_the_definition(size: int) -> None:
    seed = int(torch.randint(2**31, ()))
    print(f"seed {seed}")
    images, views = noise(SHAPES, seed), [drawn(SHAPES, seed), central_windows(np.array(SHAPES))]
    assert_as_defined(crop(of(images), views, size), images, views)


def test_images_of_any_width_up_to_the_widest_jpeg() -> None:
    shapes = [(5, 5000), (4, 20_000), (3, 65_535), (65_535, 3), (1, 39_700)]
    images = noise(shapes, 1)
    windows = [np.array([[0, 0, h, w] for h, w in shapes], dtype=np.float32)]
    for size in (240, 18):  # thousands of numbers are added up
        assert_as_defined(crop(of(images), windows, size), images, windows, within=5e-3)


@pytest.mark.parametrize("size", [48, 50])
def test_every_byte_is_written(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, empty = noise(SHAPES, 2), torch.empty
    views = [drawn(SHAPES, 2), central_windows(np.array(SHAPES))]
    expected = crop(of(images), views, size)
    for poison in (0, 255):

        def poisoned(*args: object, value: int = poison, **options: object) -> Tensor:
            return empty(*args, **options).fill_(value)  # type: ignore[call-overload, no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", poisoned)
            assert torch.equal(crop(of(images), views, size), expected)


def test_many_crops_are_what_each_is_alone() -> None:
    """With many crops the kernel uses longer strips."""
    shapes = [SHAPES[i % 2] for i in range(700)]
    images, views = noise(shapes, 3), [drawn(shapes, 3), drawn(shapes, 4)]
    together = crop(of(images), views, 96)
    for i in (0, 350, 699):
        alone = crop(of(images[i : i + 1]), [w[i : i + 1] for w in views], 96)
        assert torch.equal(together[:, i], alone[:, 0])


def test_nothing_gives_nothing() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert crop(Images.of_tensors([], device), [], 240).shape == (0, 0, 240, 240, 3)
    assert crop(Images.of_tensors([], device), torch.zeros(2, 0, 4), 240).shape[:2] == (2, 0)


def test_it_runs_on_the_current_stream() -> None:
    shapes = SHAPES * 8
    images, windows = noise(shapes, 5), [drawn(shapes, 5)]
    expected = crop(of(images), windows, 240)
    late = [torch.zeros_like(image) for image in images]
    load = torch.randn(4000, 4000, device="cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            load = load @ load / 60
        for to, image in zip(late, images, strict=True):
            to.copy_(image)  # seen only by what comes after it on this stream
        crops = crop(of(late), windows, 240)
    side.synchronize()
    assert torch.equal(crops, expected)


def test_calls_that_follow_each_other_do_not_share_their_tables() -> None:
    images, busy = noise(SHAPES, 6), torch.randn(6000, 6000, device="cuda")
    views = [[drawn(SHAPES, seed)] for seed in range(6)]
    expected = [crop(of(images), windows, 64).clone() for windows in views]
    torch.cuda.synchronize()
    for _ in range(10):
        busy = busy @ busy / 80
    crops = [crop(of(images), windows, 64) for windows in views]
    for a, b in zip(crops, expected, strict=True):
        assert torch.equal(a, b)


def test_crops_beyond_two_to_the_31_bytes() -> None:
    if torch.cuda.mem_get_info()[0] < 4e9:
        pytest.skip("needs 4 GB of GPU memory")
    (image,) = noise([(30, 40)], 7)
    shapes = [(30, 40)] * 6300
    windows = [drawn(shapes, 8), drawn(shapes, 9)]  # 2.18e9 bytes
    crops = crop(of([image] * len(shapes)), windows, 240)
    for i in (0, 3149, 6299):
        alone = crop(of([image]), [w[i : i + 1] for w in windows], 240)
        assert torch.equal(crops[:, i], alone[:, 0])


def test_as_many_blocks_are_on_a_multiprocessor_as_it_is_written_for() -> None:
    from cuda.bindings import driver

    from accelssl.pipeline.crop import cuda_kernel
    from accelssl.pipeline.cuda.driver import checked

    kernel = cuda_kernel.load(torch.cuda.current_device()).crop
    local = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
    assert checked(driver.cuFuncGetAttribute(local, kernel)) == 0
    occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    shared = kernel_source.shared_bytes()
    blocks = checked(occupancy(kernel, kernel_source.THREADS, shared))
    room = torch.cuda.get_device_properties(0).shared_memory_per_multiprocessor
    assert blocks == min(kernel_source.BLOCKS, room // (shared + 1024))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_it_runs_where_the_images_are() -> None:
    images = noise(SHAPES, 10)
    windows = [drawn(SHAPES, 10)]
    there = crop(of([image.to("cuda:1") for image in images]), windows, 64)
    assert there.device.index == 1
    assert torch.equal(there.cpu(), crop(of(images), windows, 64).cpu())
