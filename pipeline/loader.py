"""The iterator the trainer sees: compressed tokens, epochs, ranks, a position to resume from.

Shapes: N images on this rank, S patches in the grid, L kept patches, V = 768 values a token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accelssl.pipeline.compress import augmentation, drops, op, reference
from accelssl.pipeline.compress.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.dali import CropStream
from accelssl.pipeline.feed import encoded_batches
from accelssl.pipeline.order import Plan, Position, batches_per_epoch, plans, sequential_plans
from accelssl.pipeline.shards import Split
from accelssl.pipeline.views import View
from accelssl.pipeline.windows import Windows, central_windows, random_windows

EVALUATION_SIZE = 224


@dataclass(frozen=True)
class Tokens:
    """One view, compressed. keep_idx_NL: places of the tokens in the grid x grid patches."""

    values_NLV: Tensor
    keep_idx_NL: Tensor
    p: int
    grid: int


@dataclass(frozen=True)
class Batch:
    """A batch of one rank: Tokens for each view, the sample ids and the epoch they belong to."""

    views: tuple[Tokens, ...]
    samples_N: NDArray[np.int64]
    epoch: int


@dataclass(frozen=True)
class LoaderOptions:
    """How a run reads its data. seed keys every draw; threads decode, as many again read files."""

    batch: int
    seed: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    rank: int = 0
    world: int = 1
    threads: int = 2


class Loader:
    """Endless batches of `views` from `split`, starting at `start`.

    `position` is the next batch nobody has seen: a Loader started there continues with it. A
    sample's tokens depend on (seed, epoch, sample, view) alone. Raises UserError when the split is
    smaller than one batch on every rank.
    """

    def __init__(
        self,
        split: Split,
        views: Sequence[View],
        options: LoaderOptions,
        start: Position = Position(),  # noqa: B008, frozen
    ) -> None:
        self.views, self.options, self.position = tuple(views), options, start
        batches_per_epoch(len(split), options.batch, options.world)  # refuses too small a split
        planned = plans(len(split), options.batch, options.seed, options.rank, options.world, start)
        self._stream = _stream(split, self.views, options, planned, self._windows)

    def next(self, compressions: Sequence[Compression]) -> Batch:
        """The next batch, view i compressed by compressions[i]."""
        plan, crops = self._next_crops()
        tokens = tuple(
            self._compress(plan, index, view_crops, compression)
            for index, (view_crops, compression) in enumerate(zip(crops, compressions, strict=True))
        )
        return Batch(tokens, plan.samples_N, plan.epoch)

    def pictures(
        self, compressions: Sequence[Compression]
    ) -> tuple[NDArray[np.uint8], list[NDArray[np.int64]]]:
        """What the network sees, to look at: augmented crops_VNHWC, and keep_idx_VNL for each of
        `compressions`, as every view would have them. Takes a batch, as `next` does.
        """
        plan, crops = self._next_crops()
        images = []
        for index, crops_NHWC in enumerate(crops):
            augmented_NCHW = reference.augment(crops_NHWC, self._params(plan, index))
            images.append((augmented_NCHW.permute(0, 2, 3, 1) * 255).round().byte().cpu().numpy())
        kept = [
            np.stack([self._keep_idx(plan, i, c).cpu().numpy() for i in range(len(crops))])
            for c in compressions
        ]
        return np.stack(images), kept

    def _next_crops(self) -> tuple[Plan, tuple[Tensor, ...]]:
        encoded, crops = next(self._stream)
        self.position = encoded.plan.after
        return encoded.plan, crops

    def _compress(
        self, plan: Plan, index: int, crops_NHWC: Tensor, compression: Compression
    ) -> Tokens:
        keep_idx = self._keep_idx(plan, index, compression)
        params = self._params(plan, index)
        values = op.augment_patchify(
            crops_NHWC, params, keep_idx, compression.p, self.options.dtype
        )
        return Tokens(values, keep_idx, compression.p, compression.grid(crops_NHWC.shape[1]))

    def _params(self, plan: Plan, index: int) -> Tensor:
        rows = augmentation.augmentation(
            self.views[index], index, self.options.seed, plan.epoch, plan.samples_N
        )
        return torch.from_numpy(rows).to(self.options.device, non_blocking=True)

    def _keep_idx(self, plan: Plan, index: int, compression: Compression) -> Tensor:
        size = self.views[index].size
        kept = drops.kept_patches(
            self.options.seed,
            plan.epoch,
            plan.samples_N,
            index,
            compression.grid(size) ** 2,
            compression.keep(size),
        )
        return torch.from_numpy(kept).to(self.options.device, non_blocking=True)

    def _windows(self, plan: Plan, sizes_N2: NDArray[np.int64]) -> tuple[Windows, ...]:
        return tuple(
            random_windows(view, i, self.options.seed, plan.epoch, plan.samples_N, sizes_N2)
            for i, view in enumerate(self.views)
        )


def evaluation_batches(
    split: Split, options: LoaderOptions
) -> Iterator[tuple[Tokens, NDArray[np.int64]]]:
    """Every sample once, in order, uncompressed and not augmented: (Tokens, labels_N).

    The central 224 px of the image at short side 256; the last batch is as large as it comes.
    """
    view = View("evaluation", EVALUATION_SIZE)
    planned = sequential_plans(len(split), options.batch)
    for encoded, (crops,) in _stream(
        split, (view,), options, planned, lambda plan, sizes: (central_windows(sizes),)
    ):
        samples = len(encoded.labels_N)
        grid = UNCOMPRESSED.grid(EVALUATION_SIZE)
        params = torch.from_numpy(augmentation.identity(samples)).to(options.device)
        keep_idx = torch.arange(grid**2, device=options.device).repeat(samples, 1)
        values = op.augment_patchify(crops, params, keep_idx, UNCOMPRESSED.p, options.dtype)
        yield Tokens(values, keep_idx, UNCOMPRESSED.p, grid), encoded.labels_N


def _stream(
    split: Split,
    views: Sequence[View],
    options: LoaderOptions,
    planned: Iterator[Plan],
    windowing: Callable[[Plan, NDArray[np.int64]], tuple[Windows, ...]],
) -> CropStream:
    encoded = encoded_batches(split, planned, windowing, options.threads)
    sizes = [view.size for view in views]
    return CropStream(split, encoded, sizes, options.batch, options.device, options.threads)
