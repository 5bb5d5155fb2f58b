"""Encoded images for the decoder, read ahead by threads, in exactly the planned order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.pipeline.images.jpeg_header import jpeg_size
from accelssl.pipeline.order import Plan
from accelssl.pipeline.shards import Split
from accelssl.pipeline.windows import Windows

READ_AHEAD = 3


@dataclass(frozen=True)
class Encoded:
    """A planned batch with its bytes: jpegs (N arrays of uint8), labels_N, a window per view."""

    plan: Plan
    jpegs: list[NDArray[np.uint8]]
    labels_N: NDArray[np.int64]
    windows: tuple[Windows, ...]


Windowing = Callable[[Plan, NDArray[np.int64]], tuple[Windows, ...]]


def encoded_batches(
    split: Split, plans: Iterator[Plan], windowing: Windowing, threads: int
) -> Iterator[Encoded]:
    """Reads READ_AHEAD batches ahead. `windowing(plan, sizes_N2)` gives each view its windows.

    Raises UserError naming shard and key when an image cannot be read or is no JPEG.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="accelssl-read")
    # A read from an object store is a wait, not work: many at a time, also within a batch.
    parallel_reads = split.storage.parallel_reads
    at_a_time = ThreadPoolExecutor(parallel_reads) if parallel_reads > 1 else None
    pending: deque[Future[Encoded]] = deque()
    try:
        for plan in plans:
            pending.append(pool.submit(_read, split, plan, windowing, at_a_time))
            if len(pending) > READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        if at_a_time:
            at_a_time.shutdown(wait=True, cancel_futures=True)
        pool.shutdown(wait=True, cancel_futures=True)


def _read(split: Split, plan: Plan, windowing: Windowing, at_a_time: Executor | None) -> Encoded:
    jpegs, labels, sizes = [], [], []
    samples = plan.samples_N.tolist()
    contents = (at_a_time.map if at_a_time else map)(split.read, samples)
    for sample, (data, label) in zip(samples, contents, strict=True):
        try:
            sizes.append(jpeg_size(data))
        except ValueError:
            raise UserError(
                f"{split.describe(sample)} is not a JPEG image.",
                "Write the set anew with accelssl shard-imagenet, which verifies every image.",
            ) from None
        jpegs.append(np.frombuffer(data, dtype=np.uint8))
        labels.append(label)
    windows = windowing(plan, np.array(sizes, dtype=np.int64))
    return Encoded(plan, jpegs, np.array(labels, dtype=np.int64), windows)
