"""A file of a storage as a Python file that reads ahead, for reading whole tars."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from accelssl.shards.storage.storage import Storage
from accelssl.shards.tars.seekable import Seekable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE_BYTES = 4 << 20
# Enough to hide the latency of an object store; on a disk, to read while the last piece is hashed.
_MOST_PIECES_AHEAD = 4


class StorageFile(Seekable):
    """A file to read in any order: fast from front to end, with steps back of up to a piece.

    Holds at most seven pieces of 4 MiB. Reading raises the storage's OSError.
    """

    def __init__(
        self, storage: Storage, name: str, size_bytes: int, piece_bytes: int = _PIECE_BYTES
    ) -> None:
        super().__init__(size_bytes)
        self._storage, self._name, self._piece_bytes = storage, name, piece_bytes
        self._current = -1
        self._ahead = max(1, min(storage.parallel_reads, _MOST_PIECES_AHEAD))
        self._pieces: dict[int, Future[bytes]] = {}
        self._threads = ThreadPoolExecutor(self._ahead)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        into = memoryview(buffer).cast("B")
        number, skip = divmod(self._at, self._piece_bytes)
        if not len(into) or self._at >= self._size_bytes:
            return 0
        part = memoryview(self._piece(number))[skip : skip + len(into)]
        into[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._pieces.clear()
        super().close()

    def _piece(self, number: int) -> bytes:
        if number != self._current:
            self._current = number
            self._fetch_around(number)
        return self._pieces[number].result()

    def _fetch_around(self, number: int) -> None:
        wanted = range(number, number + self._ahead + 1)
        # One more on either side: a walk steps back from a header to the sample before it.
        kept = range(number - 1, number + self._ahead + 2)
        for held in [n for n in self._pieces if n not in kept]:
            del self._pieces[held]
        for n in wanted:
            begin = n * self._piece_bytes
            if n not in self._pieces and begin < self._size_bytes:
                size_bytes = min(self._piece_bytes, self._size_bytes - begin)
                self._pieces[n] = self._threads.submit(
                    self._storage.read, self._name, begin, size_bytes
                )
