import io
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from PIL import Image

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.compress.reference import augment
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.decode.dali import CropStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.draws.augmentation import identity
from accelssl.pipeline.draws.draws import Drawn
from accelssl.pipeline.draws.order import Position, sequential_plans
from accelssl.pipeline.draws.windows import random_windows
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import Batch, Loader, LoaderOptions
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.shards.shard_set import ShardSet, Split

CPU = torch.device("cpu")
OPTIONS = LoaderOptions(batch=8, seed=3, device=CPU)
VIEWS = views.simclr(240)
HALF = (Compression(30, 0.5), Compression(30, 0.5))


def by_sample(batches: list[Batch]) -> dict[tuple[int, int], list[torch.Tensor]]:
    """Return the sample's tokens in each view by (epoch, sample)."""
    return {
        (batch.epoch, int(sample)): [view.values_NLV[row] for view in batch.views]
        for batch in batches
        for row, sample in enumerate(batch.samples_N)
    }


def take(loader: Loader, count: int) -> list[Batch]:
    return [loader.next(HALF) for _ in range(count)]


def test_a_sample_gives_the_same_tokens_at_another_batch_size(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    large = by_sample(take(Loader(train, VIEWS, OPTIONS), 5))
    small = by_sample(take(Loader(train, VIEWS, replace(OPTIONS, batch=4)), 10))
    assert large.keys() == small.keys() and len(large) == 40
    for key, tokens in large.items():
        for a, b in zip(tokens, small[key], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_a_resumed_loader_continues_with_identical_batches(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    first = Loader(train, VIEWS, OPTIONS)
    take(first, 3)
    rest = take(first, 4)  # over the end of the first epoch
    resumed = Loader(train, VIEWS, OPTIONS, start=Position(0, 3))
    for expected, batch in zip(rest, take(resumed, 4), strict=True):
        assert (batch.samples_N == expected.samples_N).all()
        for a, b in zip(batch.views, expected.views, strict=True):
            assert torch.equal(a.values_NLV, b.values_NLV)
            assert torch.equal(a.keep_idx_NL, b.keep_idx_NL)
    assert resumed.position == first.position == Position(1, 2)


def test_two_ranks_never_share_a_sample_and_give_it_the_tokens_one_rank_would(
    shard_set: ShardSet,
) -> None:
    train = shard_set.split("train")
    ranks = [
        by_sample(take(Loader(train, VIEWS, replace(OPTIONS, batch=4, rank=r, world=2)), 5))
        for r in range(2)
    ]
    assert not ranks[0].keys() & ranks[1].keys()
    alone = by_sample(take(Loader(train, VIEWS, OPTIONS), 5))
    for key, tokens in (ranks[0] | ranks[1]).items():
        torch.testing.assert_close(tokens[0], alone[key][0], rtol=0, atol=1e-5)


def test_views_epochs_and_seeds_differ(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    batches = by_sample(take(Loader(train, VIEWS, OPTIONS), 10))
    other_seed = by_sample(take(Loader(train, VIEWS, replace(OPTIONS, seed=4)), 5))
    for sample in range(40):
        query, key = batches[0, sample]
        assert not torch.allclose(query, key)
        assert not torch.allclose(query, batches[1, sample][0])
        assert not torch.allclose(query, other_seed[0, sample][0])


def test_the_compression_may_change_from_batch_to_batch(shard_set: ShardSet) -> None:
    loader = Loader(shard_set.split("train"), VIEWS, replace(OPTIONS, dtype=torch.bfloat16))
    for p, drop, keep in [(16, 0.75, 56), (48, 0.0, 25), (30, 0.5, 32)]:
        for view in loader.next((Compression(p, drop),) * 2).views:
            assert view.values_NLV.shape == (8, keep, 768)
            assert view.values_NLV.dtype == torch.bfloat16
            assert (view.p, view.grid) == (p, 240 // p)


def test_views_are_shown_anew_in_the_same_crop_and_augmentation(shard_set: ShardSet) -> None:
    """MoCo's symmetric loss uses each view as query and as key."""
    train, whole = shard_set.split("train"), Compression(30, 0.0)
    pair = views.moco(240)
    batch = Loader(train, pair, OPTIONS).next((*HALF, whole, whole))
    assert len(batch.views) == 4
    for query, key in zip(batch.views[:2], batch.views[2:], strict=True):
        assert (query.keep_idx_NL.shape, key.keep_idx_NL.shape) == ((8, 32), (8, 64))
        seen = key.values_NLV.gather(1, query.keep_idx_NL[..., None].expand(-1, -1, 768))
        torch.testing.assert_close(query.values_NLV, seen, rtol=0, atol=1e-5)
    alone = Loader(train, pair, OPTIONS).next((HALF[0], whole))
    assert torch.equal(alone.views[0].values_NLV, batch.views[0].values_NLV)
    assert torch.equal(alone.views[1].values_NLV, batch.views[3].values_NLV)


def test_pictures_show_what_training_sees(shard_set: ShardSet) -> None:
    train = shard_set.split("train")
    crops, kept = Loader(train, VIEWS, OPTIONS).pictures(
        [HALF, (Compression(16, 0.75), Compression(16, 0.0))]
    )
    batch = Loader(train, VIEWS, OPTIONS).next((Compression(16, 0.75), Compression(16, 0.0)))
    assert crops.shape == (2, 8, 240, 240, 3)
    assert [[keep_idx.shape for keep_idx in stage] for stage in kept] == [
        [(8, 32), (8, 32)],
        [(8, 56), (8, 225)],
    ]
    for shown, seen in zip(kept[1], batch.views, strict=True):
        assert (shown == seen.keep_idx_NL.numpy()).all()
    row, column = divmod(int(kept[1][0][0, 0]), 15)
    patch = crops[0, 0, row * 16 : row * 16 + 16, column * 16 : column * 16 + 16, 0] / 255
    token = batch.views[0].values_NLV[0, 0, :256].view(16, 16).numpy() * 0.229 + 0.485
    assert np.abs(patch - token).max() < 1 / 255


def cut(split: Split) -> tuple[list[Encoded], list[np.ndarray]]:
    planned = sequential_plans(len(split), 8)
    encoded = EncodedBatches(
        split,
        planned,
        lambda plan, sizes: Drawn((random_windows(VIEWS[0], 0, 0, 0, plan.samples_N, sizes),)),
        threads=2,
    )
    stream = CropStream(split, encoded, [240], 8, CPU, Decoding(threads=2))
    pairs = list(itertools.islice(stream, 3))
    return [e for e, _ in pairs], [crops.numpy().copy() for _, (crops,) in pairs]


def test_crops_are_torchvisions_resized_crops_but_for_the_edge(shard_set: ShardSet) -> None:
    """At a window's edge DALI's filter reads the pixels beyond it; torchvision's does not."""
    for encoded, crops in zip(*cut(shard_set.split("train")), strict=True):
        for row, sample in enumerate(encoded.plan.samples_N):
            with Image.open(io.BytesIO(encoded.jpegs[row].tobytes())) as image:
                top, left, bottom, right = encoded.drawn.windows[0][row].astype(int).tolist()
                expected = tv.resized_crop(
                    image.convert("RGB"), top, left, bottom - top, right - left, [240, 240]
                )
            gap = np.abs(np.asarray(expected).astype(int) - crops[row].astype(int))
            margin = -(-240 // min(bottom - top, right - left)) + 1
            assert gap[margin:-margin, margin:-margin].max() <= 2, sample


def test_evaluation_sees_every_sample_once_as_torchvision_would_show_it(
    shard_set: ShardSet,
) -> None:
    val = shard_set.split("val")
    batches = list(evaluation_batches(val, OPTIONS))
    labels = np.concatenate([labels_N for _, labels_N in batches])
    assert [len(tokens.values_NLV) for tokens, _ in batches] == [8, 8, 4]
    assert labels.tolist() == [val.read(i)[1] for i in range(20)]
    assert sorted(np.bincount(labels).tolist()) == [5, 5, 5, 5]
    tokens = batches[0][0]
    assert (tokens.p, tokens.grid, tokens.values_NLV.shape[1]) == (16, 14, 196)
    with Image.open(io.BytesIO(val.read(0)[0])) as image:
        shown = tv.center_crop(tv.resize(image.convert("RGB"), [256]), [224, 224])
    pixels = torch.from_numpy(np.asarray(shown).copy())[None]
    patches = augment(pixels, torch.from_numpy(identity(1))).view(1, 3, 14, 16, 14, 16)
    expected = patches.permute(0, 2, 4, 1, 3, 5).reshape(196, 3, 256)
    std, mean = torch.tensor([0.229, 0.224, 0.225]), torch.tensor([0.485, 0.456, 0.406])
    ours = tokens.values_NLV[0].view(196, 3, 256) * std[:, None] + mean[:, None]
    assert float((ours - expected).abs().mean()) * 255 < 1


def with_image_5(split: Split, change: Callable[[bytes], bytes]) -> Split:
    """Return the split with the bytes of image 5 changed by `change`."""
    image, label = split.read(5)
    data = change(image)

    class Changed(Split):
        def read_into(self, i: int, memory: memoryview) -> tuple[memoryview, int]:
            if i != 5:
                return split.read_into(i, memory)
            memory[: len(data)] = data
            return memory[: len(data)], label

    changed = Changed.__new__(Changed)
    changed.__dict__.update(split.__dict__)
    for name, value in (("image_size_bytes", len(data)), ("image_in_room", 0)):
        values = getattr(split, name).copy()
        values[5] = value
        setattr(changed, name, values)
    changed.room_bytes = split.room_bytes + 100
    return changed


@pytest.mark.parametrize(
    "change",
    [lambda data: data[: len(data) // 2], lambda data: b"\x89PNG" + data, lambda data: b""],
    ids=["cut short", "not a JPEG", "empty"],
)
def test_a_broken_image_is_named_by_shard_and_key(
    shard_set: ShardSet, change: Callable[[bytes], bytes]
) -> None:
    train = shard_set.split("train")
    loader = Loader(with_image_5(train, change), VIEWS, OPTIONS)
    with pytest.raises(UserError, match=train.describe(5)):
        take(loader, 5)


def test_a_split_smaller_than_a_batch_is_refused(shard_set: ShardSet) -> None:
    with pytest.raises(UserError, match="40 training images"):
        Loader(shard_set.split("train"), VIEWS, replace(OPTIONS, batch=64))
