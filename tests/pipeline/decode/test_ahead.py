"""Batches that the loader prepares while the trainer uses the previous batch."""

from dataclasses import replace

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.decode.crop_stream import Crops
from accelssl.pipeline.loader import Batch, Loader, LoaderOptions
from accelssl.shards.shard_set import ShardSet

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


class Interrupted:
    """Stream that is interrupted once and loses the batch that it took."""

    def __init__(self, stream: Crops, at: int) -> None:
        self._stream, self._left = stream, at

    def __next__(self) -> object:
        self._left -= 1
        got = next(self._stream)
        if self._left == 0:
            raise KeyboardInterrupt
        return got

    def close(self) -> None:
        self._stream.close()


@pytest.mark.parametrize("options", [PLAIN, AHEAD], ids=["plain", "ahead"])
def test_after_an_interruption_a_sample_still_has_its_own_tokens(
    shard_set: ShardSet, options: LoaderOptions
) -> None:
    train = shard_set.split("train")
    expected = {}
    for batch in take(Loader(train, views.simclr(240), PLAIN), 5):
        for row, sample in enumerate(batch.samples_N.tolist()):
            expected[batch.epoch, sample] = [view.values_NLV[row] for view in batch.views]
    loader = Loader(train, views.simclr(240), options)
    loader._stream = Interrupted(loader._stream, 2)  # type: ignore[assignment, arg-type]
    loader.next(HALF)
    with pytest.raises(KeyboardInterrupt):
        loader.next(HALF)
    for batch in take(loader, 3):
        for row, sample in enumerate(batch.samples_N.tolist()):
            for view, tokens in zip(batch.views, expected[batch.epoch, sample], strict=True):
                assert torch.equal(view.values_NLV[row], tokens)


def test_a_batch_whose_waiting_was_interrupted_is_the_next_one(shard_set: ShardSet) -> None:
    loader = Loader(shard_set.split("train"), views.simclr(240), AHEAD)
    plain = Loader(shard_set.split("train"), views.simclr(240), PLAIN)
    loader.next(HALF, then=HALF)
    plain.next(HALF)
    pending = loader._pending
    assert pending is not None

    def interrupted() -> None:
        raise KeyboardInterrupt

    loader._pending = type("Waiting", (), {"result": staticmethod(interrupted)})()
    with pytest.raises(KeyboardInterrupt):
        loader.next(HALF)
    assert loader._pending is not None
    loader._pending = pending
    assert same(loader.next(HALF), plain.next(HALF))


def test_a_closed_loader_says_so_and_may_be_closed_again(shard_set: ShardSet) -> None:
    loader = Loader(shard_set.split("train"), views.simclr(240), AHEAD)
    loader.next(HALF, then=HALF)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.next(HALF)


def test_each_view_needs_a_compression(shard_set: ShardSet) -> None:
    loader = Loader(shard_set.split("train"), views.simclr(240), PLAIN)
    with pytest.raises(ValueError, match="1 compressions for 2 views"):
        loader.next(HALF[:1])


NO_GRID = Compression(48, 0.0)  # in 224 px
NONE_LEFT = Compression(16, 0.999)


@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_compression_that_fits_no_view_is_refused_and_costs_nothing(
    shard_set: ShardSet, readers: int, is_first: bool
) -> None:
    train, fitting = shard_set.split("train"), (Compression(16, 0.5),) * 2
    options = replace(PLAIN, readers=readers)
    loader, plain = (Loader(train, views.simclr(224), options) for _ in range(2))
    if not is_first:
        assert same(loader.next(fitting), plain.next(fitting))
    for misfit, reason in ((NO_GRID, "48 px patches"), (NONE_LEFT, "leaves none")):
        for refused in ((fitting[0], misfit), (*fitting, misfit)):
            with pytest.raises(UserError, match=reason):
                loader.next(refused)
            with pytest.raises(UserError, match=reason):
                loader.next(fitting, then=refused)
            with pytest.raises(UserError, match=reason):
                loader.pictures([fitting, refused])
    for _ in range(7):
        assert same(loader.next(fitting), plain.next(fitting))
    loader.close()
    plain.close()


def take(loader: Loader, count: int) -> list[Batch]:
    return [loader.next(HALF) for _ in range(count)]
