"""The measuring of what images come from: decoder, loader, copies, torchvision's loader."""

from collections.abc import Callable, Iterator

import torch

from accelssl.benchmarks.throughput.page_cache import drop_from_cache, read_into_cache
from accelssl.benchmarks.throughput.plan import SIZE, Plan, strongest
from accelssl.benchmarks.throughput.row import (
    COLD_LOADER,
    DECODER,
    LOADER,
    TORCHVISION,
    SourceTime,
)
from accelssl.benchmarks.throughput.step_windows import Windows, measure
from accelssl.benchmarks.timing import time_launched
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.decode.dali import DecoderStream
from accelssl.pipeline.draws.draws import Draws
from accelssl.pipeline.draws.order import Position, plans
from accelssl.pipeline.loader import Batch, Loader, LoaderOptions
from accelssl.pipeline.read.feed import EncodedBatches, read_ahead
from accelssl.shards.shard_set import ShardSet


class Sources:
    """The sources of images of a shard set, each to be measured alone."""

    def __init__(
        self,
        shards: ShardSet,
        options: LoaderOptions,
        plan: Plan,
        progress: Callable[[str], None],
    ) -> None:
        self._split, self._options, self._plan = shards.split("train"), options, plan
        self._location, self._progress = shards.location, progress
        self.notes: list[str] = []

    def decoder(self) -> SourceTime:
        """DALI's decoder as the loader has it, reading ahead as the loader does."""
        self._progress("the decoder alone")
        options, split = self._options, self._split
        planned = plans(len(split), options.batch, options.seed, 0, 1, Position())
        readers = options.reader_processes
        encoded = EncodedBatches(split, planned, Draws((), 0), options.threads, readers)
        stream = DecoderStream(split, encoded, options.batch, options.device, options.decoding)
        loop = measure(lambda: next(stream), options.device, self._plan.windows)
        stream.close()
        return SourceTime(DECODER, None, None, options.batch, loop.time, loop.cpu_cores)

    def loader(self) -> Iterator[SourceTime]:
        """Files that are not in the page cache first, where it can be told; then warm ones."""
        first = self._plan.compressions[0]
        yield from self._cold(first)
        if reason := read_into_cache(self._split.tars):
            self.notes.append(f"Warm figures are of the cache as the run leaves it: {reason}.")
        for compression in dict.fromkeys((first, strongest(self._plan.compressions))):
            self._progress(f"the loader alone, {compression}")
            yield self._timed_loader(LOADER, compression, self.new_loader(), self._plan.windows)

    def _cold(self, compression: Compression) -> Iterator[SourceTime]:
        """Batches of the first epoch that were not read before the cache was emptied."""
        self._progress("the loader alone, cold files")
        warm_up = 2
        in_flight = _in_flight(self._options)
        left = len(self._split) // self._options.batch - warm_up - in_flight
        if left < 2:
            self.notes.append(
                f"cold: not possible, {len(self._split):,} images are too few for this batch."
            )
            return
        loader = self.new_loader()
        for _ in range(warm_up):
            next_batch(loader, compression)
        if reason := drop_from_cache(self._split.tars):
            self.notes.append(f"cold: not possible, {reason}.")
            return
        for _ in range(in_flight):
            next_batch(loader, compression)
        # The window that is not counted, and one that is, in what is left of the epoch.
        windows = Windows(1, min(left // 2, 2 * self._plan.windows.steps), warm_up=0)
        yield self._timed_loader(COLD_LOADER, compression, loader, windows)

    def _timed_loader(
        self, name: str, compression: Compression, loader: Loader, windows: Windows
    ) -> SourceTime:
        loop = measure(lambda: next_batch(loader, compression), self._options.device, windows)
        loader.close()
        batch, p, drop = self._options.batch, compression.p, compression.drop
        return SourceTime(name, p, drop, batch, loop.time, loop.cpu_cores)

    def new_loader(self) -> Loader:
        """As a run has it."""
        return Loader(self._split, views.simclr(SIZE), self._options)

    def copy_s(self) -> float | None:
        """Measure the seconds to copy a batch of encoded images to the GPU, one copy each."""
        device = self._options.device
        if device.type != "cuda":
            return None
        samples = range(min(self._options.batch, len(self._split)))
        files = [
            torch.frombuffer(bytearray(self._split.read(i)[0]), dtype=torch.uint8) for i in samples
        ]
        pinned = [file.pin_memory() for file in files]
        places = [torch.empty_like(file, device=device) for file in files]

        def copy() -> None:
            for file, place in zip(pinned, places, strict=True):
                place.copy_(file, non_blocking=True)

        return time_launched([copy] * 4, device, 5).median_s

    def torchvision(self) -> SourceTime | None:
        """torchvision's DataLoader, a worker for each thread; None, with a note, without it."""
        self._progress(TORCHVISION)
        try:
            from accelssl.benchmarks.throughput.torchvision_peer import measure_torchvision

            images, loop = measure_torchvision(
                self._location,
                self._split,
                views.simclr(SIZE),
                self._options.batch,
                self._plan.threads,
                self._plan.windows.count,
            )
        except (ImportError, OSError, RuntimeError) as error:
            # Missing, or out of shared memory: other people's code must not cost the rest.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self.notes.append(f"{TORCHVISION} is left out: {reason}")
            return None
        return SourceTime(TORCHVISION, None, None, images, loop.time, None)


def next_batch(loader: Loader, compression: Compression) -> Batch:
    """Return training's next batch; the batch after has the same compression."""
    pair = (compression, compression)
    return loader.next(pair, then=pair)


def _in_flight(options: LoaderOptions) -> int:
    """Batches that may be read before they are asked for: the feed's, the decoders', and two that
    are handed on."""
    return read_ahead(options.reader_processes) + options.decoding.batches_ahead + 2
