"""A file that is hashed while it is read, so that its bytes are read once."""

import hashlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE_BYTES = 1 << 20


class HashedFile(io.RawIOBase):
    """A file to read in any order, whose bytes are hashed from front to end.

    Bytes that a forward seek skips are read for the hash. Wrap the
    file in io.BufferedReader for small reads.
    """

    def __init__(self, file: io.RawIOBase, on_bytes: Callable[[int], None]) -> None:
        """`on_bytes` gets the number of bytes each time that some were hashed."""
        self._file, self._on_bytes = file, on_bytes
        self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset, whence = self._at + offset, io.SEEK_SET
        self._at = self._file.seek(offset, whence)
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._hash_up_to(self._at)
        self._file.seek(self._at)
        size_bytes = self._file.readinto(buffer) or 0
        self._hash(memoryview(buffer).cast("B")[self._hashed_bytes - self._at : size_bytes])
        self._at += size_bytes
        return size_bytes

    def sha256(self) -> str:
        """Return the sha256 of the whole file in hex, after reading the rest of the file."""
        self._hash_up_to(None)
        return self._sha256.hexdigest()

    @property
    def size_bytes(self) -> int:
        """Number of bytes hashed: after sha256(), the size of the file."""
        return self._hashed_bytes

    def _hash_up_to(self, end: int | None) -> None:
        if end is not None and end <= self._hashed_bytes:
            return
        self._file.seek(self._hashed_bytes)
        while end is None or self._hashed_bytes < end:
            left = _PIECE_BYTES if end is None else min(_PIECE_BYTES, end - self._hashed_bytes)
            piece = self._file.read(left)
            if not piece:
                break
            self._hash(piece)

    def _hash(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow the hashed ones."""
        self._sha256.update(data)
        self._hashed_bytes += len(data)
        self._on_bytes(len(data))
