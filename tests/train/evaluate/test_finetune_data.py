"""What fine-tuning sees: the transforms against torchvision, the order of pictures, mixing."""

import multiprocessing
import os
import pickle
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from timm.loss import SoftTargetCrossEntropy
from torchvision.transforms import v2

from accelssl.errors import UserError
from accelssl.pipeline.compress import op
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.draws import augmentation
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import LoaderOptions
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.train.evaluate.backbone import Pictures, whole_pictures
from accelssl.train.evaluate.finetune_data import (
    Batch,
    FinetunePlan,
    Key,
    SplitPictures,
    batches,
    epoch_order,
    evaluation_transform,
    steps_per_epoch,
    training_transform,
)
from accelssl.train.evaluate.finetune_settings import deit, finetune_settings, mae
from accelssl.train.evaluate.finetune_step import mixing

CPU = torch.device("cpu")
LEVEL = 1 / 255 / min(IMAGENET_STD)


def noise(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(3)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(300, 400), (256, 256), (500, 260), (180, 120)])
def test_validation_sees_what_torchvision_shows(size: tuple[int, int]) -> None:
    expected = v2.Compose(
        [
            v2.Resize(256, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(224),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    picture = noise(*size)
    ours = evaluation_transform(Pictures())(picture)
    assert ours.shape == (3, 224, 224)
    assert torch.allclose(ours, expected(picture), atol=1e-6)


def test_colours_are_those_of_pretraining() -> None:
    """At 256 px nothing is resized: the centre, normalised as the op normalises it."""
    picture = noise(256, 256)
    crop = torch.from_numpy(np.asarray(picture)[16:240, 16:240].copy())[None]
    identity = torch.from_numpy(augmentation.identity(1))
    tokens_NLV = op.augment_patchify(crop, identity, torch.arange(14**2)[None], 16)
    patches = tokens_NLV.view(14, 14, 3, 16, 16).permute(2, 0, 3, 1, 4).reshape(3, 224, 224)
    assert torch.allclose(evaluation_transform(Pictures())(picture), patches, atol=1e-5)


def test_validation_sees_what_the_other_protocols_see(shard_set: ShardSet) -> None:
    split = shard_set.split("val")
    tokens, labels_N = next(evaluation_batches(split, LoaderOptions(len(split), 0, CPU)))
    theirs = whole_pictures(tokens)
    pictures = SplitPictures(shard_set, Pictures(), mae())
    ((ours, our_labels_N),) = batches(pictures, [[Key(i) for i in range(len(split))]], 0)
    assert our_labels_N.tolist() == labels_N.tolist()
    difference = (ours - theirs).abs()
    assert float(difference.mean()) < 2 * LEVEL and float(difference.max()) < 8 * LEVEL


def test_other_colours_and_sizes_are_followed() -> None:
    pictures = Pictures(64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    white = Image.new("RGB", (100, 90), "white")
    for transform in (
        evaluation_transform(pictures),
        training_transform(pictures, finetune_settings("mae", rand_augment="", erase=0.0)),
    ):
        assert torch.equal(transform(white), torch.ones(3, 64, 64))


def test_an_epoch_shows_each_picture_once_or_a_third_of_them_three_times() -> None:
    assert sorted(epoch_order(300, mae(), 0)) == list(range(300))
    counts = Counter(epoch_order(300, deit(), 0))
    assert len(counts) == 100 and set(counts.values()) == {3}
    orders = [epoch_order(300, deit(), 0), epoch_order(300, deit(), 1)]
    orders.append(epoch_order(300, finetune_settings("deit", seed=1), 0))
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] == epoch_order(300, deit(), 0)


@pytest.mark.parametrize("level", [0, 5, 9, 10])
def test_every_operation_of_rand_augment_works_at_every_level(level: int) -> None:
    """Posterizing to 0 bits is black, as it was before Pillow refused it."""
    transform = training_transform(Pictures(64), mae())
    (randomly,) = (step for step in transform.transforms if hasattr(step, "ops"))  # type: ignore[attr-defined]
    picture = noise(64, 64)
    for operation in randomly.ops:
        operation.prob, operation.magnitude, operation.magnitude_std = 1.0, level, 0.0
        changed = np.asarray(operation(picture))
        assert changed.shape == (64, 64, 3)
        if operation.name == "PosterizeIncreasing" and level == 10:
            assert not changed.any()


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_pieces_that_one_rank_has(world: int) -> None:
    settings = finetune_settings("deit", epochs=3, batch=32, most_at_once=8)
    alone = list(FinetunePlan(settings, 101, 0))
    assert len(alone) == 3 * 3 * 4 and all(len(piece) == 8 for piece in alone)
    shared = [iter(FinetunePlan(settings, 101, 0, rank=rank, world=world)) for rank in range(world)]
    for number, piece in enumerate(alone):
        assert next(shared[number % world]) == piece


def test_val_comes_after_each_epoch_and_once_more_for_the_moving_average() -> None:
    settings = finetune_settings("deit", epochs=2, batch=16, most_at_once=8)
    plan = FinetunePlan(settings, 40, 20, last_counts=1)
    val = [[Key(i) for i in range(begin, min(20, begin + 8))] for begin in (0, 8, 16)]
    pieces = list(plan)
    assert (plan.steps, plan.last, len(pieces)) == (2, 4, 2 * (4 + 3) + 3)
    assert pieces[4:7] == pieces[11:14] == pieces[14:] == val
    assert all(key.draw is not None for piece in pieces[:4] + pieces[7:11] for key in piece)
    parts = [FinetunePlan(settings, 40, 20, rank=rank, world=3).counting() for rank in range(3)]
    counted = [key.sample for part in parts for piece in part for key in piece]
    assert sorted(counted) == list(range(20))


def test_a_plan_that_goes_on_is_the_rest_of_the_whole() -> None:
    settings = finetune_settings("deit", epochs=2, batch=16, most_at_once=8)
    whole = list(FinetunePlan(settings, 40, 20, last_counts=1))
    for first, begin in ((1, 2), (2, 7), (3, 9), (4, 14)):
        assert list(FinetunePlan(settings, 40, 20, first, last_counts=1)) == whole[begin:]


def test_repeats_of_a_picture_fall_into_different_pieces() -> None:
    settings = finetune_settings("deit", epochs=1, batch=32, most_at_once=8)
    for piece in FinetunePlan(settings, 96, 0):
        samples = [key.sample for key in piece]
        assert len(set(samples)) == len(samples)


def shown(pictures: SplitPictures, key: Key) -> torch.Tensor:
    example = pictures[key]
    assert not isinstance(example, UserError)
    return example[0]


def test_no_two_places_and_no_two_epochs_look_alike_and_each_looks_the_same_again(
    shard_set: ShardSet,
) -> None:
    pictures = SplitPictures(shard_set, Pictures(64), deit())
    first = shown(pictures, Key(3, (0, 0)))
    others = [shown(pictures, Key(3, draw)) for draw in ((0, 1), (1, 0))]
    random.seed(99)
    torch.manual_seed(99)
    assert torch.equal(shown(pictures, Key(3, (0, 0))), first)
    assert not any(torch.equal(other, first) for other in others)
    assert not torch.equal(*others)


def test_another_process_sees_the_same_pictures(shard_set: ShardSet) -> None:
    pictures = SplitPictures(shard_set, Pictures(64), mae())
    elsewhere = pickle.loads(pickle.dumps(pictures))
    for key in (Key(0, (0, 0)), Key(17, (2, 5)), Key(17)):
        assert torch.equal(shown(pictures, key), shown(elsewhere, key))


def same(some: list[Batch], others: list[Batch]) -> bool:
    return all(
        torch.equal(images, other_images) and torch.equal(labels, other_labels)
        for (images, labels), (other_images, other_labels) in zip(some, others, strict=True)
    )


@pytest.mark.slow
def test_processes_give_the_same_batches_in_the_same_order_and_end_when_closed(
    shard_set: ShardSet,
) -> None:
    settings = finetune_settings("deit", epochs=2, batch=16, most_at_once=8)
    pictures, plan = (
        SplitPictures(shard_set, Pictures(64), settings),
        FinetunePlan(settings, 40, 20),
    )
    here = list(batches(pictures, plan, 0))
    arriving = batches(pictures, plan, 2)
    there = [next(arriving), next(arriving)]  # one of each process: both have begun
    processes = multiprocessing.active_children()
    assert len(processes) == 2
    os.kill(int(processes[0].pid or 0), signal.SIGTERM)  # as to all processes of a job
    there += [next(arriving) for _ in here[2:-1]]
    assert len(here) == 14 and same(here[:-1], there)
    arriving.close()
    assert not any(process.is_alive() for process in processes)


def damaged(shards: Path, copy: Path) -> ShardSet:
    """A copy of the set, of the same size, in which the training picture 5 is zeros."""
    shutil.copytree(shards, copy)
    split = open_shards(copy).split("train")
    tar = copy / f"{split.shards[int(split.tar_number[5])].name}.tar"
    with tar.open("r+b") as file:
        file.seek(int(split.image_offset[5]))
        file.write(bytes(int(split.image_size_bytes[5])))
    return open_shards(copy)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_picture_is_named(shard_dir: Path, tmp_path: Path, workers: int) -> None:
    pictures = SplitPictures(damaged(shard_dir, tmp_path / "shards"), Pictures(64), mae())
    keys = [[Key(i, (0, i)) for i in range(begin, begin + 4)] for begin in (0, 4)]
    with pytest.raises(UserError, match=r"key \d+.* cannot be decoded"):
        list(batches(pictures, keys, workers))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_is_killed_is_said_in_plain_words(shard_set: ShardSet) -> None:
    settings = finetune_settings("mae", epochs=50, batch=8)
    arriving = batches(
        SplitPictures(shard_set, Pictures(64), settings), FinetunePlan(settings, 40, 0), 1
    )
    next(arriving)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(UserError, match=r"decodes pictures ended .*--shm-size"):
        list(arriving)


def test_a_set_that_was_written_anew_is_not_read_on(shard_set: ShardSet) -> None:
    pictures = SplitPictures(shard_set, Pictures(64), mae())
    pictures._place = (shard_set.location, "0" * 64)
    found = pickle.loads(pickle.dumps(pictures))[Key(0)]
    assert isinstance(found, UserError) and "was rewritten" in found.what


def test_a_batch_larger_than_the_split_is_refused() -> None:
    assert steps_per_epoch(1023, finetune_settings("deit", batch=512)) == 1
    with pytest.raises(UserError, match=r"1024 is more than the 1023 training.*--batch 510"):
        steps_per_epoch(1023, deit())


@pytest.mark.parametrize("mixed", [{}, {"cutmix": 0.0}, {"mixup": 0.0}])
def test_targets_sum_to_one_and_say_what_is_in_the_picture(mixed: dict[str, float]) -> None:
    """Pictures of one colour per class: the mean of a channel tells how much of each is in it."""
    settings = finetune_settings("deit", smoothing=0.0, **mixed)
    labels = torch.tensor([0, 1, 2, 1, 2, 2])
    mix = mixing(settings, 3)
    for seed in range(5):
        np.random.seed(seed)  # noqa: NPY002, timm draws from it
        images = torch.eye(3)[labels][:, :, None, None].expand(-1, -1, 32, 32).clone()
        images, targets = mix(images, labels)
        assert torch.allclose(targets.sum(1), torch.ones(6))
        assert torch.allclose(images.mean((2, 3)), targets, atol=1e-5)


def test_without_mixing_the_loss_is_torchs_with_smoothed_labels() -> None:
    settings = finetune_settings("deit", mixup=0.0, cutmix=0.0)
    images, labels, logits = torch.randn(4, 3, 8, 8), torch.tensor([0, 4, 2, 2]), torch.randn(4, 5)
    same, targets = mixing(settings, 5)(images.clone(), labels)
    assert torch.equal(same, images)
    ours = SoftTargetCrossEntropy()(logits, targets)  # type: ignore[no-untyped-call]
    assert torch.allclose(ours, F.cross_entropy(logits, labels, label_smoothing=0.1))
