"""The loader most people have: torchvision's transforms of Pillow images in DataLoader's workers.

SimCLR's two views as in the code of MoCo-v3: blur by Pillow, which is faster than torchvision's,
everything else by torchvision. The same bytes come from the same shards. What it makes are images,
not tokens: it does less than the loader it is compared with.
"""

import io
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from accelssl.benchmarks.throughput.step_windows import Loop, Windows, measure
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.views import View
from accelssl.shards.shard_set import Split, open_shards

CPU = torch.device("cpu")
WAIT_S = 120.0


class PillowBlur:
    """Gaussian blur with a sigma drawn from a range in pixels."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self._sigma = sigma

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self._sigma)))


def transform(view: View) -> Any:
    """A view (without solarize, which SimCLR has not) as a transform: image -> float32 CHW."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(view.size, view.scale, view.ratio),
            transforms.RandomApply([transforms.ColorJitter(*view.jitter)], view.jitter_p),
            transforms.RandomGrayscale(view.gray_p),
            transforms.RandomApply([PillowBlur(view.blur_sigma)], view.blur_p),
            transforms.RandomHorizontalFlip(view.flip_p),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """The views of each image of a split, which every worker opens for itself."""

    def __init__(self, location: str, split: str, samples: int, views: tuple[View, View]) -> None:
        self._location, self._name, self._samples = location, split, samples
        self._transforms = tuple(transform(view) for view in views)
        self._split: Split | None = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if self._split is None:
            self._split = open_shards(self._location).split(self._name)
        data, _ = self._split.read(i)
        with Image.open(io.BytesIO(data)) as image:
            rgb = image.convert("RGB")
        first, second = (transform(rgb) for transform in self._transforms)
        return first, second


class TorchvisionLoader:
    """Endless batches, each made by all workers together, an equal part each.

    A worker takes long for a whole batch of 512. In parts the rate is the same, and known sooner.
    """

    def __init__(
        self, location: str, split: Split, views: tuple[View, View], batch: int, workers: int
    ) -> None:
        self.part = max(1, batch // workers)
        self.parts = max(1, batch // self.part)
        self._loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            Pairs(location, split.name, len(split), views),
            self.part,
            shuffle=True,
            num_workers=workers,
            drop_last=True,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=True,
            timeout=WAIT_S,
            # Not fork: DALI and torch have threads that may hold locks.
            multiprocessing_context=multiprocessing.get_context("spawn"),
        )
        self._batches = self._endless()

    @property
    def batch(self) -> int:
        """Images that `next` gives."""
        return self.part * self.parts

    def next(self) -> list[Any]:
        """The parts of a batch, each a list of the two views, float32 NCHW."""
        return [next(self._batches) for _ in range(self.parts)]

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def close(self) -> None:
        """End the workers."""
        self._batches.close()  # type: ignore[attr-defined]
        self._loader._iterator = None


def measure_torchvision(
    location: str, split: Split, views: tuple[View, View], batch: int, workers: int, windows: int
) -> tuple[int, Loop]:
    """Images a step, and its time. Its cores cannot be told before its workers end: all, nearly."""
    loader = TorchvisionLoader(location, split, views, batch, workers)
    try:
        return loader.batch, measure(loader.next, CPU, Windows(windows, 1, warm_up=2))
    finally:
        loader.close()
