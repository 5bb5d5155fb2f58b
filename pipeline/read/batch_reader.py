"""Read the samples of a batch into one buffer.

Legend of shape suffixes: N samples of the batch.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.shards.images.jpeg_header import SOI, jpeg_size
from accelssl.shards.shard_set import Split

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Extents:
    """Positions of a batch's JPEGs in its buffer, with labels and sizes of the images.

    sizes_N2: (height, width) in pixels.
    """

    begin_N: Int64
    size_bytes_N: Int64
    labels_N: Int64
    sizes_N2: Int64


class BatchReader:
    """Reader of batches of `split`, for use by any number of threads."""

    def __init__(self, split: Split) -> None:
        self._split = split
        # Cached after the first read of an image: 8 bytes per sample save parsing headers again.
        self._sizes_N2 = np.zeros((len(split), 2), dtype=np.int32)
        # A read from an object store mostly waits, so many reads of a batch run at a time.
        at_a_time = split.storage.parallel_reads
        self._pool = ThreadPoolExecutor(at_a_time) if at_a_time > 1 else None

    def read(self, samples_N: Int64, memory: memoryview) -> Extents:
        """Read the samples into `memory`, which has at least `room_bytes(samples_N)`.

        Raises UserError with shard and key if an image cannot be read or is no JPEG.
        """
        split, samples = self._split, samples_N.tolist()
        ends_N = np.cumsum(split.room_bytes[samples_N])
        starts_N = ends_N - split.room_bytes[samples_N]
        bounds = zip(starts_N.tolist(), ends_N.tolist(), strict=True)
        rooms = [memory[start:end] for start, end in bounds]
        reads: Callable[..., Iterable[Any]] = self._pool.map if self._pool else map
        labels = []
        for sample, (image, label) in zip(
            samples, reads(split.read_into, samples, rooms), strict=True
        ):
            labels.append(label)
            # Some bytes that are no JPEG crash DALI's process, so every image is checked.
            if image[:2] != SOI or not self._sizes_N2[sample, 0]:
                self._sizes_N2[sample] = self._size(sample, image)
        return Extents(
            starts_N + split.image_in_room[samples_N],
            split.image_size_bytes[samples_N],
            np.array(labels, dtype=np.int64),
            self._sizes_N2[samples_N].astype(np.int64),
        )

    def room_bytes(self, samples_N: Int64) -> int:
        """Return the buffer size that `read` needs for these samples."""
        return int(self._split.room_bytes[samples_N].sum())

    def close(self, *, waits: bool = True) -> None:
        """End the threads. If waits, wait for reads that have begun."""
        if self._pool:
            self._pool.shutdown(wait=waits, cancel_futures=True)

    def _size(self, sample: int, image: memoryview) -> tuple[int, int]:
        try:
            return jpeg_size(image)
        except ValueError:
            raise UserError(
                f"{self._split.describe(sample)} is not a JPEG image.",
                "Write the set again with accelssl shard-imagenet, which verifies every image.",
            ) from None
