"""Crops by the crop kernel against crops by DALI's resize, and several decoders against one."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.decode.crop_stream import KernelCrops, crop_stream
from accelssl.pipeline.decode.dali import CropStream, DecoderStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.draws.draws import Draws
from accelssl.pipeline.draws.order import sequential_plans
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.shards.shard_set import ShardSet, Split

CPU, SIZES = torch.device("cpu"), (240, 96, 240)


def encoded(split: Split) -> Iterator[Encoded]:
    view = views.simclr(240)[0]
    return EncodedBatches(
        split,
        sequential_plans(len(split), 8),
        Draws((view,) * len(SIZES), 0),
        threads=2,
    )


@pytest.mark.parametrize("decoders", [1, 2, 3, 9])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_both_ways_give_the_same_crops_for_views_of_any_size(
    shard_set: ShardSet, device: str, decoders: int
) -> None:
    split, where = shard_set.split("train"), torch.device(device)
    # The engines round otherwise than the multiprocessors, and which images they get depends on
    # where in its decoder's batch an image stands: here they get none.
    alike = Decoding(hw_load=0)
    decoder = DecoderStream(split, encoded(split), 8, where, replace(alike, decoders=decoders))
    dalis = CropStream(split, encoded(split), SIZES, 8, where, alike)
    for (a, ours), (b, theirs) in zip(KernelCrops(decoder, SIZES), dalis, strict=True):
        assert (a.plan.samples_N == b.plan.samples_N).all()
        for x, y, size in zip(ours, theirs, SIZES, strict=True):
            assert x.shape == y.shape == (8, size, size, 3)
            assert int((x.int() - y.int()).abs().max()) <= 1
    assert len(split) % 8 == 0


def test_a_cpu_has_dalis_way(shard_set: ShardSet) -> None:
    split = shard_set.split("train")
    stream = crop_stream(split, encoded(split), SIZES, 8, CPU, Decoding())
    assert isinstance(stream, CropStream)
    assert [np.shape(c) for c in next(stream)[1]] == [(8, s, s, 3) for s in SIZES]


@pytest.mark.gpu
def test_a_gpu_has_our_kernel_unless_it_cannot_be_compiled(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    split, gpu = shard_set.split("train"), torch.device("cuda")
    assert isinstance(crop_stream(split, encoded(split), SIZES, 8, gpu, Decoding()), KernelCrops)
    monkeypatch.setattr("accelssl.pipeline.decode.crop_stream.unavailable", lambda _: "no NVRTC")
    assert isinstance(crop_stream(split, encoded(split), SIZES, 8, gpu, Decoding()), CropStream)
    assert "no NVRTC" in caplog.text


def pixels(decoders: int, split: Split, batch: int) -> list[list[NDArray[np.uint8]]]:
    """Return the images of each batch; the last batch may be smaller."""
    planned = sequential_plans(len(split), batch)
    batches = EncodedBatches(split, planned, Draws((), 0), threads=2)
    stream = DecoderStream(split, batches, batch, CPU, Decoding(decoders=decoders))
    return [[np.array(image) for image in images] for _, images in stream]


def test_decoders_share_the_threads_and_a_decoder_alone_has_them_all(
    shard_set: ShardSet,
) -> None:
    split = shard_set.split("train")
    for threads, decoders, each in ((6, 2, 3), (5, 2, 2), (1, 3, 1)):
        decoding = Decoding(threads=threads, decoders=decoders)
        shared = DecoderStream(split, encoded(split), 8, CPU, decoding)
        assert [p.num_threads for p in shared._pipelines] == [each] * decoders
        alone = CropStream(split, encoded(split), SIZES, 8, CPU, decoding)
        assert [p.num_threads for p in alone._pipelines] == [threads]


@pytest.mark.parametrize("decoders", [2, 3, 6])
def test_batches_of_decoders_in_turn_come_in_their_order_to_the_last(
    shard_set: ShardSet, decoders: int
) -> None:
    split = shard_set.split("train")
    batch = next(b for b in (13, 11, 9, 7) if len(split) % b == 1)
    in_turn, alone = pixels(decoders, split, batch), pixels(1, split, batch)
    assert [len(images) for images in in_turn] == [len(images) for images in alone]
    assert len(in_turn[-1]) == 1
    for ours, theirs in zip(in_turn, alone, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_there_may_be_more_decoders_than_batches(shard_set: ShardSet) -> None:
    split = shard_set.split("train")
    (images,) = pixels(3, split, len(split))
    assert len(images) == len(split)


@pytest.mark.parametrize("decoders", [1, 2, 3])
@pytest.mark.parametrize("at", [1, 2, 3, -3, -2, -1])
@pytest.mark.parametrize("is_lost", [False, True], ids=["before", "after"])
def test_an_interrupt_of_a_decoder_does_not_mix_batches(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, decoders: int, at: int, is_lost: bool
) -> None:
    """The interrupt comes before DALI returns, or after; then the batch is lost."""
    split = shard_set.split("train")
    batches = EncodedBatches(split, sequential_plans(len(split), 8), Draws((), 0), threads=2)
    stream = DecoderStream(split, batches, 8, CPU, Decoding(decoders=decoders))
    expected = pixels(1, split, 8)
    numbers = range(len(expected))
    for _ in numbers[:at]:
        next(stream)
    run = Pipeline.run

    def interrupted(pipeline: Pipeline, *args: Any) -> Any:
        if is_lost:
            run(pipeline, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Pipeline, "run", interrupted)
        next(stream)
    left = numbers[at:][is_lost:]
    for number, (encoded, decoded) in zip(left, stream, strict=True):
        assert encoded.plan.samples_N[0] == 8 * number
        images = [np.array(image) for image in decoded]
        assert all(np.array_equal(a, b) for a, b in zip(images, expected[number], strict=True))


def test_a_broken_image_is_named_whichever_decoder_has_it(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, read = shard_set.split("train"), Split.read_into

    def broken(self: Split, i: int, memory: memoryview) -> tuple[memoryview, int]:
        image, label = read(self, i, memory)
        if i == 14:  # of the second batch: the second decoder's
            codes = bytes(image).index(b"\xff\xc4") + 5  # how many there are of each length
            image[codes : codes + 16] = b"\xff" * 16
        return image, label

    monkeypatch.setattr(Split, "read_into", broken)
    batches = EncodedBatches(split, sequential_plans(len(split), 8), Draws((), 0), threads=2)
    stream = DecoderStream(split, batches, 8, CPU, Decoding(decoders=2))
    next(stream)
    for _ in range(3):  # and nothing else afterwards, as if it were the next batch
        with pytest.raises(UserError, match=re.escape(split.describe(14)) + " cannot be decoded"):
            next(stream)


@pytest.mark.parametrize("decoders", [1, 2])
def test_an_interrupt_of_what_feeds_the_decoders_is_no_end(
    shard_set: ShardSet, decoders: int
) -> None:
    split = shard_set.split("train")
    batches = EncodedBatches(split, sequential_plans(len(split), 8), Draws((), 0), threads=2)

    def interrupted() -> Iterator[Encoded]:
        yield from itertools.islice(batches, 3)
        raise KeyboardInterrupt

    stream = DecoderStream(split, interrupted(), 8, CPU, Decoding(decoders=decoders))
    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(stream)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="Create a new stream"):
            seen += [next(stream) for _ in range(4)]
    batches.close()
