"""Loader of compressed tokens for training: epochs, ranks, and a position to resume from.

Legend of shape suffixes: N images on this rank, H x W pixels, C = 3 channels (a suffix of crops),
P augmentation parameters, L kept patches, V = 768 values per token; in crops_VNHWC, V is views.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accelssl.pipeline.compress import op, reference
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.decode import hardware_queues
from accelssl.pipeline.decode.crop_stream import Crops, crop_stream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.decode.prep_stream import PrepStream
from accelssl.pipeline.draws.draws import DrawnView, Draws
from accelssl.pipeline.draws.order import Plan, Position, batches_per_epoch, plans
from accelssl.pipeline.read.feed import EncodedBatches
from accelssl.pipeline.views import View
from accelssl.shards.shard_set import Split

GPU_READERS = 3
GPU_DECODERS = 2

MOST_GPU_THREADS = 8
"""Most threads that decode on a GPU: more decode no faster and delay the launches of kernels."""
MANY_THREADS = 12
MANY_THREADS_HW_LOAD = 0.85
"""Share of images for the JPEG engines (`hw_load`) of a run with MANY_THREADS or more.

Below MANY_THREADS the share is Decoding's 0.9: the threads also do all other work of the run, and
take longer for 15% of a batch than the engines for 85%.
Measured in benchmarks/results/live_pipeline_log_202611.md, section 5.
"""


@dataclass(frozen=True)
class Tokens:
    """Tokens of one view. keep_idx_NL: patch indices of the tokens, in a grid of grid x grid."""

    values_NLV: Tensor
    keep_idx_NL: Tensor
    p: int
    grid: int


@dataclass(frozen=True)
class Batch:
    """Batch of one rank: Tokens for each compression, the sample ids and their epoch.

    labels_N: the samples' classes, which training does not use; empty in a batch without labels.
    """

    views: tuple[Tokens, ...]
    samples_N: NDArray[np.int64]
    epoch: int
    labels_N: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class LoaderOptions:
    """Settings of a Loader.

    seed: key of every draw. prefetch, preallocated_px: see Decoding.
    threads: threads that decode, on a GPU at most MOST_GPU_THREADS. Without reader processes the
    same number of threads reads files.
    hw_load: see Decoding; None for 0.85 with MANY_THREADS or more threads, else 0.9.
    decoders: see Decoding; None for GPU_DECODERS. A CPU has one decoder.
    works_ahead: True to prepare the next batch on a separate thread; None for True on a GPU.
    readers: processes that read files and draw, so that both do not block the thread that launches
    kernels; 0 to use threads; None for GPU_READERS on a GPU, else 0.
    """

    batch: int
    seed: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    rank: int = 0
    world: int = 1
    threads: int = 2
    prefetch: int = Decoding.prefetch
    hw_load: float | None = None
    preallocated_px: int = Decoding.preallocated_px
    decoders: int | None = None
    works_ahead: bool | None = None
    readers: int | None = None

    @property
    def reader_processes(self) -> int:
        """Return the number of processes that read files; 0 if threads read."""
        if self.readers is not None:
            return self.readers
        return GPU_READERS if self.device.type == "cuda" else 0

    @property
    def decoding(self) -> Decoding:
        """Return the decoder's settings, with the defaults of the device filled in."""
        suits = MANY_THREADS_HW_LOAD if self.threads >= MANY_THREADS else Decoding.hw_load
        hw_load = suits if self.hw_load is None else self.hw_load
        threads, decoders = self.threads, 1
        if self.device.type == "cuda":
            threads = min(threads, MOST_GPU_THREADS)
            decoders = GPU_DECODERS if self.decoders is None else self.decoders
        return Decoding(threads, self.prefetch, hw_load, self.preallocated_px, decoders)


@dataclass(frozen=True)
class _Made:
    """Batch before it is returned: `views` are the compressed `crops`, ready at event `at`."""

    plan: Plan
    labels_N: NDArray[np.int64]
    crops: tuple[Tensor, ...]
    compressions: tuple[Compression, ...]
    views: tuple[Tokens, ...]
    at: torch.cuda.Event | None


class Loader:
    """Endless stream of batches of `views` from `split`, starting at `start`.

    `position` is the position of the next unread batch: a new Loader with this `start` continues
    there. A sample's tokens depend on (seed, epoch, sample, view) alone. Raises UserError if the
    split is smaller than one batch on every rank.

    On a GPU the loader runs on a separate stream. The tensors of a batch are ready in the order of
    the stream that is current in the call of `next`.
    """

    def __init__(
        self,
        split: Split,
        views: Sequence[View],
        options: LoaderOptions,
        start: Position = Position(),  # noqa: B008, frozen
    ) -> None:
        self.views, self.options, self.position = tuple(views), options, start
        batches_per_epoch(len(split), options.batch, options.world)  # raises for a small split
        planned = plans(len(split), options.batch, options.seed, options.rank, options.world, start)
        self._draws = Draws(self.views, options.seed)
        self._encoded = EncodedBatches(
            split, planned, self._draws, options.threads, options.reader_processes
        )
        sizes = [view.size for view in self.views]
        self._stream: Crops | None = crop_stream(
            split, self._encoded, sizes, options.batch, options.device, options.decoding
        )
        self._prep_stream = PrepStream(options.device)
        on_gpu = options.device.type == "cuda"
        if on_gpu:
            hardware_queues.warn_once()
        works_ahead = on_gpu if options.works_ahead is None else options.works_ahead
        self._thread = ThreadPoolExecutor(1, "accelssl-ahead") if works_ahead else None
        self._pending: Future[_Made] | None = None

    def next(
        self, compressions: Sequence[Compression], then: Sequence[Compression] | None = None
    ) -> Batch:
        """Return the next batch, with view i compressed by compressions[i].

        There may be more compressions than views. The further ones apply to the views again, from
        the first view on, with the same crop and augmentation: with two views, Batch.views[2] is
        the first view compressed by compressions[2]. A key can so see all patches of its query.

        `then`: the expected compressions of the following batch, which is prepared while the
        caller uses this batch. A call with other compressions compresses the batch again.

        Raises ValueError for fewer compressions than views, and UserError for a compression that
        does not fit its view.
        """
        for asked in (compressions, then):
            self._refuse_misfits(asked)
        made = self._take(tuple(compressions))
        if then is not None and self._thread:
            self._pending = self._thread.submit(self._make, tuple(then))
        return self._handed_over(made)

    def next_in_turn(self, several: Sequence[Sequence[Compression]]) -> Iterator[Batch]:
        """Yield the next batch once for each of `several` compressions of its views.

        All yielded batches share crops and augmentation, and each is compressed as by `next` when
        the caller asks for it. Raises as `next` does.
        """
        made: _Made | None = None
        for compressions in map(tuple, several):
            self._refuse_misfits(compressions)
            if made is None:
                made = self._take(compressions)
            elif made.compressions != compressions:
                made = self._compressed_anew(made, compressions)
            yield self._handed_over(made)

    def close(self) -> None:
        """Free processes, threads, decoders and prepared batches. Afterwards `next` raises.

        An unclosed loader frees them some time after its last reference is gone.
        """
        if self._thread:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._pending = None
        if self._stream:
            self._stream.close()
        self._stream = None

    def pictures(
        self, stages: Sequence[Sequence[Compression]]
    ) -> tuple[NDArray[np.uint8], list[list[NDArray[np.int64]]]]:
        """Return the next batch as pictures: augmented crops_VNHWC, and keep_idx_NL by stage.

        For each of `stages` there is a keep_idx_NL for every view, by the view's first compression
        in the stage. Views of another size than the first view (DINO's small crops) are omitted.
        """
        for stage in stages:
            self._refuse_misfits(stage)
        made = self._take(tuple(stages[0]))
        shown = [i for i, view in enumerate(self.views) if view.size == self.views[0].size]
        images = []
        with self._prep_stream.in_use():
            for index in shown:
                params = self._prep_stream.sent(self._draws.params(made.plan, index))
                augmented_NCHW = reference.augment(made.crops[index], params)
                augmented_NHWC = (augmented_NCHW.permute(0, 2, 3, 1) * 255).round().byte()
                images.append(augmented_NHWC.cpu().numpy())
        kept = [[self._draws.keep_idx(made.plan, i, stage[i]) for i in shown] for stage in stages]
        return np.stack(images), kept

    def _refuse_misfits(self, asked: Sequence[Compression] | None) -> None:
        """Raise for compressions that do not fit the views, as `next` documents.

        An error in a later draw would end the stream.
        """
        if asked is None:
            return
        if len(asked) < len(self.views):
            raise ValueError(
                f"{len(asked)} compressions for {len(self.views)} views: give one for each view."
            )
        for view, compression in zip(cycle(self.views), asked, strict=False):
            compression.keep(view.size)

    def _handed_over(self, made: _Made) -> Batch:
        for view in made.views:
            self._prep_stream.hand_over(made.at, view.values_NLV, view.keep_idx_NL)
        return Batch(made.views, made.plan.samples_N, made.plan.epoch, made.labels_N)

    def _take(self, compressions: tuple[Compression, ...]) -> _Made:
        if self._stream is None:
            raise RuntimeError("The loader is closed. Create a new Loader at its position.")
        # If an interrupt ends the wait, the pending batch stays pending.
        made = self._pending.result() if self._pending else self._make(compressions)
        self._pending = None
        if made.compressions != compressions:
            made = self._compressed_anew(made, compressions)
        self.position = made.plan.after
        return made

    def _make(self, compressions: tuple[Compression, ...]) -> _Made:
        assert self._stream is not None
        # Batches that are read from now on are drawn for these compressions.
        self._encoded.drawing = replace(self._draws, compressions=compressions)
        with self._prep_stream.in_use():
            encoded, crops = next(self._stream)
        drawn = encoded.drawn.views
        if compressions != tuple(view.compression for view in drawn):
            drawn = self._draws.drawn(encoded.plan, compressions)
        return self._compressed(encoded.plan, encoded.labels_N, crops, drawn)

    def _compressed_anew(self, made: _Made, compressions: tuple[Compression, ...]) -> _Made:
        drawn = self._draws.drawn(made.plan, compressions)
        return self._compressed(made.plan, made.labels_N, made.crops, drawn)

    def _compressed(
        self,
        plan: Plan,
        labels_N: NDArray[np.int64],
        crops: tuple[Tensor, ...],
        drawn: tuple[DrawnView, ...],
    ) -> _Made:
        with self._prep_stream.in_use():
            views = tuple(map(self._compress, cycle(crops), drawn))
            compressions = tuple(view.compression for view in drawn)
            return _Made(plan, labels_N, crops, compressions, views, self._prep_stream.mark())

    def _compress(self, crops_NHWC: Tensor, drawn: DrawnView) -> Tokens:
        keep_idx, p = self._prep_stream.sent(drawn.keep_idx_NL), drawn.compression.p
        params = self._prep_stream.sent(drawn.params_NP)
        values = op.augment_patchify(crops_NHWC, params, keep_idx, p, self.options.dtype)
        return Tokens(values, keep_idx, p, drawn.compression.grid(crops_NHWC.shape[1]))
