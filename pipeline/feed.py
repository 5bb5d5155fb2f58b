"""Encoded images for the decoder, read ahead by threads, in exactly the planned order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.pipeline.jpeg_header import jpeg_size
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
    pending: deque[Future[Encoded]] = deque()
    try:
        for plan in plans:
            pending.append(pool.submit(_read, split, plan, windowing))
            if len(pending) > READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(split: Split, plan: Plan, windowing: Windowing) -> Encoded:
    jpegs, labels, sizes = [], [], []
    for sample in plan.samples_N.tolist():
        data, label = split.read(sample)
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
