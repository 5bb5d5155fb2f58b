"""Parts of images that views see: nothing that they show is missing, and no more is decoded."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from accelssl.pipeline import dali, views
from accelssl.pipeline.crop.definition import resized_image
from accelssl.pipeline.dali import CropStream, DecoderStream
from accelssl.pipeline.decoding import Decoding
from accelssl.pipeline.draws import Draws
from accelssl.pipeline.feed import EncodedBatches
from accelssl.pipeline.order import sequential_plans
from accelssl.pipeline.regions import seen_regions
from accelssl.pipeline.shards import ShardSet
from accelssl.pipeline.windows import Windows, central_windows, random_windows

CPU = torch.device("cpu")
SIZES_N2 = np.array([(90, 160), (31, 47), (375, 500), (64, 9), (600, 40), (1, 1), (16, 2000)])
SAMPLES_N = np.arange(len(SIZES_N2))
SIDES = (240, 224, 16)


def drawn(epoch: int) -> list[Windows]:
    """Large, central and small ones, the central ones with fractions of pixels."""
    large, small = views.simclr(240)[0], views.dino(240)[2]
    return [
        random_windows(large, 0, 0, epoch, SAMPLES_N, SIZES_N2),
        central_windows(SIZES_N2),
        random_windows(small, 1, 0, epoch, SAMPLES_N, SIZES_N2),
    ]


def shifted(window: Windows, begin: NDArray[np.int32]) -> torch.Tensor:
    return torch.from_numpy(window - np.tile(begin, 2).astype(np.float32))


@pytest.mark.parametrize("of", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_a_view_of_a_region_is_that_of_the_whole_image(of: list[int]) -> None:
    rng = np.random.default_rng(0)
    for epoch in range(4):
        windows, sides = [drawn(epoch)[i] for i in of], [SIDES[i] for i in of]
        begin_N2, extent_N2 = seen_regions(windows, sides, 1, SIZES_N2)
        assert (begin_N2 >= 0).all() and (begin_N2 + extent_N2 <= SIZES_N2).all()
        for n, (height, width) in enumerate(SIZES_N2):
            image = torch.from_numpy(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))
            (top, left), (rows, columns) = begin_N2[n], extent_N2[n]
            region = image[top : top + rows, left : left + columns]
            for window, side in zip(windows, sides, strict=True):
                whole = resized_image(image, torch.from_numpy(window[n]), side, torch.float64)
                there = shifted(window[n], begin_N2[n])
                seen = resized_image(region, there, side, torch.float64)
                torch.testing.assert_close(seen, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("reach", [1, 2])
def test_a_region_holds_what_the_filter_reaches_and_hardly_more(reach: int) -> None:
    windows = np.array([[10.25, 40, 20, 400.5]], dtype=np.float32)
    begin_N2, extent_N2 = seen_regions([windows], [60], reach, np.array([[100, 1000]]))
    scale = 360.5 / 60
    (top, left), (bottom, right) = begin_N2[0], (begin_N2 + extent_N2)[0]
    assert 10.25 - reach - 2.25 <= top <= 10.25 - reach
    assert 20 + reach <= bottom <= 20 + reach + 1
    assert 40 - reach * scale - 2 <= left <= 40 - reach * scale
    assert 400.5 + reach * scale <= right <= 400.5 + reach * scale + 2.5


def test_without_windows_a_region_is_the_image() -> None:
    begin_N2, extent_N2 = seen_regions((), (), 1, SIZES_N2)
    assert not begin_N2.any() and (extent_N2 == SIZES_N2).all()


@pytest.mark.parametrize("is_cubic", [False, True])
def test_a_stream_gives_the_crops_that_it_gives_of_whole_images(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, is_cubic: bool
) -> None:
    split, sizes = shard_set.split("train"), (240, 96)

    def crops() -> list[NDArray[np.int64]]:
        draws = Draws((views.simclr(240)[0], views.dino(240)[2]), 0)
        batches = EncodedBatches(split, sequential_plans(len(split), 8), draws, threads=2)
        stream = CropStream(split, batches, sizes, 8, CPU, Decoding(), is_cubic)
        return [view.numpy().astype(np.int64) for _, made in stream for view in made]

    of_regions = crops()

    def whole(windows: Any, sides: Any, reach: int, sizes_N2: NDArray[np.int64]) -> Any:
        return seen_regions((), (), reach, sizes_N2)

    monkeypatch.setattr(dali, "seen_regions", whole)
    differences = np.array([np.abs(a - b).max() for a, b in zip(of_regions, crops(), strict=True)])
    assert differences.max() <= 1  # places are rounded otherwise in a smaller image


def test_a_decoder_without_crops_decodes_what_views_see(shard_set: ShardSet) -> None:
    split, view = shard_set.split("train"), views.dino(240)[2]
    for sizes in ((96, 96), ()):
        draws = Draws((view, view), 0)
        batches = EncodedBatches(split, sequential_plans(len(split), 8), draws, threads=2)
        for encoded, images in DecoderStream(split, batches, 8, CPU, Decoding(), sizes):
            windows = encoded.drawn.windows if sizes else ()
            _, extent_N2 = seen_regions(windows, sizes, 1, encoded.sizes_N2)
            assert [image[:2] for image in images.shape()] == [tuple(e) for e in extent_N2.tolist()]


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_decoded_region_has_the_pixels_of_the_decoded_image(
    subsampling: str, progressive: bool
) -> None:
    """Also where it cuts a block of the JPEG, or colours that stand for several pixels."""
    fn: Any = pytest.importorskip("nvidia.dali.fn")
    pipeline_def: Any = pytest.importorskip("nvidia.dali").pipeline_def
    rng = np.random.default_rng(1)
    coarse = rng.integers(0, 256, (13, 17, 3)).astype(np.uint8)
    picture, file = (
        Image.fromarray(coarse).resize((149, 101), Image.Resampling.BICUBIC),
        io.BytesIO(),
    )
    picture.save(file, "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
    jpeg, n = np.frombuffer(file.getvalue(), dtype=np.uint8), 64
    begin_N2 = rng.integers(0, (101, 149), (n, 2)).astype(np.int32)
    extent_N2 = rng.integers(1, (101, 149) - begin_N2 + 1).astype(np.int32)

    @pipeline_def(batch_size=n, num_threads=2, device_id=None)  # type: ignore[untyped-decorator]
    def both() -> Any:
        source = [([jpeg] * n, begin_N2, extent_N2)]
        jpegs, begin, extent = fn.external_source(source=source, num_outputs=3, batch=True)
        return fn.decoders.image(jpegs), fn.decoders.image_slice(jpegs, begin, extent, axes=[0, 1])

    images, regions = both().run()
    for i, ((top, left), (rows, columns)) in enumerate(zip(begin_N2, extent_N2, strict=True)):
        expected = np.array(images[i])[top : top + rows, left : left + columns]
        assert np.array_equal(np.array(regions[i]), expected)
