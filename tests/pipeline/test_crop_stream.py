"""Our kernel's way to crops beside DALI's own."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from accelssl.pipeline import views
from accelssl.pipeline.crop_stream import KernelCrops, crop_stream
from accelssl.pipeline.dali import CropStream, DecoderStream
from accelssl.pipeline.decoding import Decoding
from accelssl.pipeline.draws import Draws
from accelssl.pipeline.feed import Encoded, EncodedBatches
from accelssl.pipeline.order import sequential_plans
from accelssl.pipeline.shards import ShardSet, Split

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
    monkeypatch.setattr("accelssl.pipeline.crop_stream.unavailable", lambda _: "no NVRTC")
    assert isinstance(crop_stream(split, encoded(split), SIZES, 8, gpu, Decoding()), CropStream)
    assert "no NVRTC" in caplog.text
