"""Encoded images for the decoder, read ahead in the planned order."""

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.draws.draws import Drawing, Drawn
from accelssl.pipeline.draws.order import Plan
from accelssl.pipeline.read.batch_reader import BatchReader, Extents, Int64
from accelssl.pipeline.read.reader_process import ReaderProcess, SharedMemory
from accelssl.shards.shard_set import Split

READ_AHEAD = 3

Bytes = NDArray[np.uint8]


def read_ahead(readers: int) -> int:
    """Return the number of batches that are read ahead."""
    return max(READ_AHEAD, readers)


@dataclass(frozen=True)
class Encoded:
    """Planned batch with its JPEGs (N arrays of uint8), labels_N and draws.

    sizes_N2: (height, width) of the images. The arrays are valid while the Encoded object is
    referenced. Afterwards another batch reuses their memory.
    """

    plan: Plan
    jpegs: list[Bytes]
    labels_N: Int64
    sizes_N2: Int64
    drawn: Drawn


class EncodedBatches:
    """Iterator over the Encoded batches of `plans`; reads `read_ahead(readers)` batches ahead.

    `drawing` draws for each batch. Assign another Drawing at any time: it applies to batches whose
    reading has not begun. `readers` processes read and draw, or `threads` threads if readers is 0.
    Processes receive `drawing` by pickle. Threads and processes start with the first batch.

    Raises UserError with shard and key if an image cannot be read or is no JPEG, and the same
    error again in each further call.
    """

    def __init__(
        self,
        split: Split,
        plans: Iterator[Plan],
        drawing: Drawing,
        threads: int,
        readers: int = 0,
    ) -> None:
        self._split, self._plans, self.drawing = split, plans, drawing
        self._threads, self._readers = readers or threads, readers
        self._pending: deque[Future[Encoded]] = deque()
        self._failure: Exception | None = None
        self._work: tuple[ThreadPoolExecutor, _Feed] | None = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Encoded]:
        return self

    def __next__(self) -> Encoded:
        if self._failure:
            raise self._failure
        if self._is_closed:
            raise StopIteration
        pool, _ = self._work = self._work or self._start()
        ahead = read_ahead(self._readers)
        while len(self._pending) <= ahead and (plan := next(self._plans, None)):
            self._pending.append(pool.submit(self._encoded, plan))
        if not self._pending:
            raise StopIteration
        try:
            return self._pending.popleft().result()
        except Exception as error:
            self._failure = error
            raise

    def close(self) -> None:
        """End threads and processes after the reads that have begun."""
        self._is_closed = True
        if self._work:
            pool, feed = self._work
            self._work = None
            pool.shutdown(wait=True, cancel_futures=True)
            feed.close()

    def _start(self) -> "tuple[ThreadPoolExecutor, _Feed]":
        feed = _Processes(self._split, self._readers) if self._readers else _Threads(self._split)
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="accelssl-read")
        weakref.finalize(self, _let_go, pool, feed).atexit = False
        return pool, feed

    def _encoded(self, plan: Plan) -> Encoded:
        assert self._work is not None
        _, feed = self._work
        memory, extents, drawn = feed.read(plan, self.drawing)
        ends = (extents.begin_N + extents.size_bytes_N).tolist()
        jpegs = [memory[a:b] for a, b in zip(extents.begin_N.tolist(), ends, strict=True)]
        batch = Encoded(plan, jpegs, extents.labels_N, extents.sizes_N2, drawn)
        weakref.finalize(batch, feed.take_back, memory).atexit = False
        return batch


def _let_go(pool: ThreadPoolExecutor, feed: "_Feed") -> None:
    """Release unclosed batches without waiting.

    May run in any thread, for example during garbage collection while the thread holds a lock.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    feed.let_go()


class _Feed(Protocol):
    """Source of bytes. Reuses memory, because new memory takes three times as long to fill."""

    def read(self, plan: Plan, drawing: Drawing) -> tuple[Bytes, Extents, Drawn]: ...
    def take_back(self, memory: Bytes) -> None: ...
    def close(self) -> None: ...
    def let_go(self) -> None: ...


class _Threads(_Feed):
    """Feed that reads in the calling thread."""

    def __init__(self, split: Split) -> None:
        self._reader, self._free = BatchReader(split), deque[Bytes]()

    def read(self, plan: Plan, drawing: Drawing) -> tuple[Bytes, Extents, Drawn]:
        needed_bytes = self._reader.room_bytes(plan.samples_N)
        memory = self._free.popleft() if self._free else np.empty(0, dtype=np.uint8)
        if len(memory) < needed_bytes:  # a fourth more fits most of the later batches
            memory = np.empty(needed_bytes * 5 // 4, dtype=np.uint8)
        extents = self._reader.read(plan.samples_N, memory.data)
        return memory, extents, drawing(plan, extents.sizes_N2)

    def take_back(self, memory: Bytes) -> None:
        self._free.append(memory)

    def close(self) -> None:
        self._reader.close()

    def let_go(self) -> None:
        self._reader.close(waits=False)


class _Processes(_Feed):
    """Feed that reads in `count` processes, each with one batch at a time."""

    def __init__(self, split: Split, count: int) -> None:
        self._split = split
        self._all = [ReaderProcess(split) for _ in range(count)]
        self._idle = deque(self._all)
        self._memories: dict[int, SharedMemory] = {}
        self._free: deque[SharedMemory] = deque()

    def read(self, plan: Plan, drawing: Drawing) -> tuple[Bytes, Extents, Drawn]:
        memory = self._free.popleft() if self._free else self._memory(len(plan.samples_N))
        if memory.size_bytes < self._split.room_bytes[plan.samples_N].sum():
            memory = self._memory(len(plan.samples_N))
        process = self._idle.popleft()
        try:
            extents, drawn = process.read(plan, memory, drawing)
        finally:
            self._idle.append(process)
        return memory.array, extents, drawn

    def take_back(self, memory: Bytes) -> None:
        known = self._memories.get(memory.ctypes.data)
        if known:  # None after `close`
            self._free.append(known)

    def close(self) -> None:
        for process in self._all:
            process.close()
        self._free.clear()
        self._memories.clear()

    def let_go(self) -> None:
        for process in self._all:
            process.let_go()

    def _memory(self, samples: int) -> SharedMemory:
        """Allocate memory that fits any `samples` samples of the split."""
        largest = np.sort(self._split.room_bytes)[-samples:]
        memory = SharedMemory(int(largest.sum()))
        self._memories[memory.array.ctypes.data] = memory
        return memory
