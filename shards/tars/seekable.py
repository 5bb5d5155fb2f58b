"""Base class of files that are made of other files."""

import io


class Seekable(io.RawIOBase):
    """A readable file of a known size; subclasses read."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._at = size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at
