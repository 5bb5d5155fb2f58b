"""Leases keep the memory of DALI's outputs until the GPU has read them."""

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.pipeline import views
from accelssl.pipeline.decode.crop_stream import KernelCrops
from accelssl.pipeline.decode.dali import CropStream, DecoderStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.decode.output_leases import OutputLeases
from accelssl.pipeline.draws.draws import Draws
from accelssl.pipeline.draws.order import Position, plans
from accelssl.pipeline.read.feed import EncodedBatches
from accelssl.shards.shard_set import ShardSet, Split

BATCHES, BATCH, SIZES = 24, 8, (96, 96)
TENTH_OF_A_SECOND = 200_000_000  # in a GPU's cycles, at 2 GHz


class Clock:
    """Stream stand-in: work with numbers up to `now` is done; waiting advances `now`."""

    def __init__(self) -> None:
        self.now = self.launched = 0
        self.waits: list[int] = []

    def record_event(self) -> "Event":
        return Event(self, self.launched)

    def query(self) -> bool:
        return self.record_event().query()

    def synchronize(self) -> None:
        self.record_event().synchronize()


class Event:
    def __init__(self, clock: Clock, at: int) -> None:
        self._clock, self._at = clock, at

    def query(self) -> bool:
        return self._clock.now >= self._at

    def synchronize(self) -> None:
        if not self.query():
            self._clock.waits.append(self._at)
            self._clock.now = self._at


class Outputs:
    pass


def leased(leases: OutputLeases, clock: Clock) -> Callable[[], object]:
    """Lease a new output, launch a kernel that reads it, and return a weak reference to it."""
    outputs = Outputs()
    leases.add(outputs, clock)
    clock.launched += 1
    return weakref.ref(outputs)


def test_what_was_lent_stays_until_the_gpu_is_done_with_it() -> None:
    leases, clock = OutputLeases(), Clock()
    first = leased(leases, clock)
    clock.now = 1
    assert first()  # done with what is launched; more may come
    leases.end_last()
    assert first() is None
    second = leased(leases, clock)
    leases.end_last()
    assert second() and not clock.waits
    clock.now = 2
    leases.end_last()
    assert second() is None and not clock.waits


def test_it_waits_rather_than_keep_more_than_one_beside_the_last() -> None:
    leases, clock = OutputLeases(), Clock()
    each = []
    for number in range(4):
        leases.end_last()
        each.append(leased(leases, clock))
        assert [bool(outputs()) for outputs in each[-3:]] == [False, True, True][-len(each) :]
        assert clock.waits == list(range(1, number))


@pytest.mark.parametrize("ends", [OutputLeases.close, OutputLeases.end_last])
def test_an_interrupt_while_it_waits_is_raised_and_gives_nothing_away(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[OutputLeases], None]
) -> None:
    leases, clock = OutputLeases(), Clock()
    first = leased(leases, clock)
    leases.end_last()
    leased(leases, clock)

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Event, "synchronize", interrupted)
        ends(leases)
    assert first() and clock.now == 0
    ends(leases)
    assert first() is None and clock.waits[0] == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_closed_or_dropped_it_waits_for_all(is_closed: bool) -> None:
    leases, clock = OutputLeases(), Clock()
    outputs = leased(leases, clock)
    clock.launched = 3
    if is_closed:
        leases.close()
    else:
        del leases
        gc.collect()
    assert outputs() is None and clock.now == 3


def kernels(split: Split, batches: EncodedBatches, device: torch.device) -> KernelCrops:
    decoding = Decoding(prefetch=1, hw_load=0, decoders=2)
    return KernelCrops(DecoderStream(split, batches, BATCH, device, decoding), SIZES)


def dalis(split: Split, batches: EncodedBatches, device: torch.device) -> CropStream:
    return CropStream(split, batches, SIZES, BATCH, device, Decoding(prefetch=2, hw_load=0))


def encoded(split: Split) -> EncodedBatches:
    drawn = Draws((views.simclr(96)[0],) * 2, 0)
    planned = plans(len(split), BATCH, 0, 0, 1, Position())
    return EncodedBatches(split, planned, drawn, threads=2)


@pytest.mark.gpu
@pytest.mark.parametrize("way", [kernels, dalis])
def test_crops_are_right_however_late_the_gpu_makes_them(
    shard_set: ShardSet, way: Callable[..., Any]
) -> None:
    """Each crop waits behind a long idle kernel while DALI continues decoding."""
    split, gpu = shard_set.split("train"), torch.device("cuda")

    def crops(cycles: int) -> Iterator[Tensor]:
        stream = way(split, encoded(split), gpu)
        for _, made in itertools.islice(stream, BATCHES // 2):
            yield torch.stack(made)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        stream.close()

    prompt = [batch.cpu() for batch in crops(0)]
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        late = list(crops(TENTH_OF_A_SECOND))
    torch.cuda.synchronize()
    for ours, expected in zip(late, prompt, strict=True):
        assert np.array_equal(ours.cpu().numpy(), expected.numpy())


def addresses(outputs: list[Any]) -> list[tuple[int, int]]:
    """Return the begin and end address of each image in DALI's lists."""
    images = [images[i] for images in outputs for i in range(len(images))]
    return [(each.data_ptr(), each.data_ptr() + math.prod(each.shape())) for each in images]


@pytest.mark.gpu
def test_no_output_lies_where_one_is_that_the_gpu_has_yet_to_read(shard_set: ShardSet) -> None:
    """DALI's writes are not ordered with the work that waits on this stream."""
    split, gpu = shard_set.split("train"), torch.device("cuda")
    stream = dalis(split, encoded(split), gpu)
    to_be_read: list[tuple[torch.cuda.Event, list[tuple[int, int]]]] = []
    used_again = 0
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(BATCHES):
            made = stream._run()[1]
            at = addresses(made)
            del made
            for reader, others in to_be_read:
                overlaps = any(a < d and c < b for a, b in at for c, d in others)
                used_again += overlaps
                assert not overlaps or reader.query()  # type: ignore[no-untyped-call]
            torch.cuda._sleep(TENTH_OF_A_SECOND)  # type: ignore[no-untyped-call]
            to_be_read.append((torch.cuda.current_stream().record_event(), at))
    torch.cuda.synchronize()
    stream.close()
    assert used_again
