"""Pictures for fine-tuning, decoded and augmented with timm's transforms in worker processes.

Shapes: N pictures, C = 3 channels, H = W pixels.
"""

import random
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from timm.data import auto_augment
from timm.data.auto_augment import RandAugment
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from accelssl.errors import UserError
from accelssl.pipeline.draws.windows import CENTRE, SHORT_SIDE
from accelssl.shards.shard_set import ShardSet, Split, open_shards
from accelssl.train.evaluate.backbone import Pictures
from accelssl.train.evaluate.finetune_settings import FinetuneSettings

Transform = Callable[[Image.Image], Tensor]
Example = tuple[Tensor, int]
Batch = tuple[Tensor, Tensor]
"""images_NCHW and labels_N."""


class Key(NamedTuple):
    """A training picture and the (epoch, place) of its augmentation; without `draw`, a picture
    of val."""

    sample: int
    draw: tuple[int, int] | None = None


def training_transform(pictures: Pictures, settings: FinetuneSettings) -> Transform:
    """Return timm's random resized crop (bicubic), flip, RandAugment, normalisation and random
    erasing."""
    transform = create_transform(
        pictures.size,
        is_training=True,
        color_jitter=0.0,
        auto_augment=settings.rand_augment or None,
        interpolation="bicubic",
        mean=pictures.mean,
        std=pictures.std,
        re_prob=settings.erase,
        re_mode="pixel",
    )
    for step in transform.transforms:
        for operation in step.ops if isinstance(step, RandAugment) else ():
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize
    return cast(Transform, transform)


def _posterize(picture: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Posterize like timm. With 0 bits return black: Pillow 13 and newer refuse 0 bits."""
    if bits < 1:
        return Image.new(picture.mode, picture.size)
    return auto_augment.posterize(picture, bits, **options)  # type: ignore[no-any-return, no-untyped-call]


def evaluation_transform(pictures: Pictures) -> Transform:
    """Return the resize of the short side to 256 (bicubic), central crop of 224 px and
    normalisation; other sizes in proportion."""
    transform: Transform = create_transform(
        pictures.size,
        is_training=False,
        interpolation="bicubic",
        crop_pct=CENTRE / SHORT_SIDE,
        mean=pictures.mean,
        std=pictures.std,
    )
    return transform


class FinetunePurpose(IntEnum):
    """The first number of a key of draws. No two purposes share draws."""

    ORDER = 0
    PICTURE = 1
    MIXING = 2
    HEAD = 3


def seed_draws(purpose: FinetunePurpose, *key: int) -> None:
    """Seed all generators that timm's augmentation, mixing and stochastic depth use.

    The draws depend on the key alone, not on the number of workers or ranks or on resumes.
    """
    number = _number(purpose, *key)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002, timm draws from it
    torch.manual_seed(number)


def _number(purpose: FinetunePurpose, *key: int) -> int:
    return int(np.random.SeedSequence((purpose, *key)).generate_state(1, np.uint64)[0])


class SplitPictures(Dataset[Example | UserError]):
    """The samples of train and val by Key. A copy in another process opens the set again.

    A picture that cannot be read is returned as a UserError: a worker's exceptions arrive as other
    types.
    """

    def __init__(self, shards: ShardSet, pictures: Pictures, settings: FinetuneSettings) -> None:
        self._shards: ShardSet | None = shards
        self._place, self._seed = (shards.location, shards.digest), settings.seed
        self._training = training_transform(pictures, settings)
        self._validation = evaluation_transform(pictures)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_shards": None}

    def __getitem__(self, key: Key) -> Example | UserError:
        try:
            shards = self._shards = self._shards or _opened(*self._place)
            split = shards.split("val" if key.draw is None else "train")
            encoded, label = split.read(key.sample)
            picture = _decoded(split, key.sample, encoded)
        except UserError as error:
            return error
        if key.draw is None:
            return self._validation(picture), label
        seed_draws(FinetunePurpose.PICTURE, self._seed, *key.draw)
        return self._training(picture), label


def _opened(location: str, digest: str) -> ShardSet:
    shards = open_shards(location)
    if shards.digest != digest:
        raise UserError(f"{location} was rewritten during the run.", "Start again.")
    return shards


def _decoded(split: Split, sample: int, encoded: bytes) -> Image.Image:
    try:
        return Image.open(BytesIO(encoded)).convert("RGB")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{split.describe(sample)} cannot be decoded ({error}).",
            "Look the set over with accelssl verify-shards.",
        ) from error


def epoch_order(images: int, settings: FinetuneSettings, epoch: int) -> list[int]:
    """Return the samples of an epoch in order, each `repeats` times, as many as there are images.

    Repeated augmentation: Hoffer et al., CVPR 2020. As in DeiT, repeats do not make an epoch
    longer.
    """
    order = RepeatAugSampler(  # type: ignore[no-untyped-call]
        range(images), num_replicas=1, rank=0, num_repeats=settings.repeats, selected_round=0
    )
    order.set_epoch(_number(FinetunePurpose.ORDER, settings.seed, epoch))  # type: ignore[no-untyped-call]
    return list(order)


def steps_per_epoch(images: int, settings: FinetuneSettings) -> int:
    """Return the number of whole batches in an epoch. Raise UserError if there is none."""
    if images < 2:
        raise UserError(
            f"A train split of {images} has no pictures to mix in pairs.",
            "Fine-tune on a larger set with --data.",
        )
    if images < settings.batch:
        raise UserError(
            f"A batch of {settings.batch} is more than the {images} training pictures.",
            f"Use --batch {max(2, images // 2 // 2 * 2)} or less.",
        )
    return images // settings.batch


@dataclass(frozen=True)
class FinetunePlan:
    """The keys of all pieces, in order, on one of `world` ranks, from step `first` on.

    After the pieces of each epoch come those of val. At the end val comes `last_counts` more times.
    A batch is distributed round-robin over its pieces, so that repeats of a picture fall into
    different pieces, as they fall on different GPUs in DeiT. Each rank takes every world-th piece.
    """

    settings: FinetuneSettings
    trained_on: int
    counted_on: int
    first: int = 0
    last_counts: int = 0
    rank: int = 0
    world: int = 1

    @property
    def steps(self) -> int:
        """Return the number of steps in an epoch."""
        return steps_per_epoch(self.trained_on, self.settings)

    @property
    def last(self) -> int:
        """Return the number of steps of the whole fine-tuning."""
        return self.settings.epochs * self.steps

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, begin = divmod(self.first, self.steps)
        for number in range(epoch, self.settings.epochs):
            order = epoch_order(self.trained_on, self.settings, number)
            for batch in range(begin, self.steps):
                yield from self._pieces(order, number, batch)
            yield from self.counting()
            begin = 0
        for _ in range(self.last_counts):
            yield from self.counting()

    def _pieces(self, order: list[int], epoch: int, batch: int) -> Iterator[list[Key]]:
        size, pieces = self.settings.batch, self.settings.pieces
        places = range(batch * size, (batch + 1) * size)
        for piece in range(self.rank, pieces, self.world):
            yield [Key(order[place], (epoch, place)) for place in places[piece::pieces]]

    def counting(self) -> list[list[Key]]:
        """Return this rank's part of val, in pieces."""
        samples, size = range(self.rank, self.counted_on, self.world), self.settings.at_once
        starts = range(0, len(samples), size)
        return [[Key(sample) for sample in samples[begin : begin + size]] for begin in starts]


def batches(
    pictures: SplitPictures, keys: Iterable[list[Key]], workers: int, *, pinned: bool = False
) -> Generator[Batch, None, None]:
    """Yield the pictures of each list of keys, in order, decoded ahead by `workers` processes.

    With 0 workers this process decodes. Close the generator to end the processes. Raise UserError
    when a picture cannot be read or a process has died.
    """
    loader = DataLoader(
        pictures,
        batch_sampler=keys,
        num_workers=workers,
        # Not fork: the caller may hold locks in other threads (torch, DALI).
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_leave_signals_to_the_parent if workers else None,
        pin_memory=pinned,
        collate_fn=_collate,
    )
    arriving = iter(loader)
    try:
        for batch in arriving:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise UserError(
            f"A process that decodes pictures ended ({' '.join(str(error).split())}).",
            "Check free memory and shared memory: containers have little by default (docker run "
            "--shm-size). The same command continues from the last epoch.",
        ) from error
    finally:
        del arriving  # ends the processes: a traceback would keep the iterator alive


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ignore SIGINT and SIGTERM in a worker. A job's signal reaches all processes, but the
    current batch must be finished."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _collate(examples: list[Example | UserError]) -> Batch | UserError:
    for example in examples:
        if isinstance(example, UserError):
            return example
    images_NCHW, labels_N = default_collate(examples)
    return images_NCHW, labels_N
