"""The batch that is made while the trainer uses the one before it."""

from dataclasses import replace

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.compress.compression import Compression
from accelssl.pipeline.loader import Batch, Loader, LoaderOptions
from accelssl.pipeline.shards import ShardSet

HALF, ALL = (Compression(30, 0.5),) * 2, (Compression(16, 0.0),) * 2
PLAIN = LoaderOptions(batch=8, seed=3, device=torch.device("cpu"))
AHEAD = replace(PLAIN, works_ahead=True)


def same(a: Batch, b: Batch) -> bool:
    return (a.samples_N == b.samples_N).all() and all(
        torch.equal(x.values_NLV, y.values_NLV) and torch.equal(x.keep_idx_NL, y.keep_idx_NL)
        for x, y in zip(a.views, b.views, strict=True)
    )


def test_batches_made_ahead_are_those_made_when_asked_for(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    plain, ahead = (Loader(train, views.simclr(240), options) for options in (PLAIN, AHEAD))
    for _ in range(7):
        assert same(plain.next(HALF), ahead.next(HALF, then=HALF))
        assert plain.position == ahead.position


def test_a_change_of_mind_gives_the_compression_asked_for_last(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    plain, ahead = (Loader(train, views.simclr(240), options) for options in (PLAIN, AHEAD))
    asked = [HALF, ALL, ALL, HALF, HALF]
    for compressions in asked:
        assert same(plain.next(compressions), ahead.next(compressions, then=HALF))


def test_a_batch_made_ahead_does_not_count_as_seen(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    loader = Loader(train, views.simclr(240), AHEAD)
    loader.next(HALF, then=HALF)
    follower = Loader(train, views.simclr(240), PLAIN, loader.position)
    assert same(loader.next(HALF), follower.next(HALF))


def test_what_goes_wrong_ahead_is_said_when_its_batch_is_asked_for(shard_set: ShardSet) -> None:
    loader = Loader(shard_set.split("train"), views.simclr(240), AHEAD)

    def fail(*_: object) -> None:
        raise UserError("Image 7 is broken.", "Mend it.")

    loader._stream = type("Broken", (), {"__next__": fail})()
    loader._pending = loader._thread.submit(loader._make, HALF)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="Image 7"):
        loader.next(HALF)
