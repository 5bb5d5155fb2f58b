"""Walk through a tar archive without extracting it: its members and the offsets of their data.

Reading is done by Python's tarfile (ustar, GNU and PAX with long names). tarfile takes
a damaged header for the end of the archive, and accepts a missing end mark. Both are errors here.
"""

import io
import tarfile
from collections.abc import Iterator
from enum import Enum
from typing import BinaryIO, NamedTuple

from accelssl.shards.tars.seekable import Seekable

_END_MARK_BYTES = 2 * tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20


class Kind(Enum):
    """Kind of a member."""

    FILE = "a file"
    FOLDER = "a folder"
    LINK = "a link"
    OTHER = "a special or sparse file"


class TarMember(NamedTuple):
    """A member: its path in the archive, its kind, and the place of its data in the file."""

    path: str
    kind: Kind
    offset: int
    size_bytes: int


class DamagedTar(Exception):
    """The file is no complete uncompressed tar archive; the text says why."""


def tar_members(
    file: BinaryIO, *, start: int = 0, size_bytes: int | None = None
) -> Iterator[TarMember]:
    """Yield the members, in order, of the archive in a seekable file or in a part of the file.

    Offsets count from the beginning of the file. A FILE's bytes are `size_bytes` at `offset`.
    Raises DamagedTar for a file that is no tar, ends early, has a damaged header, or goes on after
    its end mark, after the members before the damage. Raises OSError for an unreadable file.
    """
    if size_bytes is None:
        size_bytes = file.seek(0, io.SEEK_END) - start
    window = _Part(file, start, size_bytes)
    try:
        with tarfile.open(fileobj=window, mode="r:") as tar:
            while (member := tar.next()) is not None:
                if member.size < 0:  # tarfile would go round in circles
                    raise DamagedTar(f"it has a damaged header at byte {member.offset}")
                yield TarMember(member.name, _kind(member), start + member.offset_data, member.size)
                # Else tarfile keeps every header: 2 GB for the 1.28 million of ImageNet.
                tar.members.clear()  # type: ignore[attr-defined]
            end = tar.offset
    # ValueError: numbers in damaged PAX headers. RecursionError: thousands of long names in a row.
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise DamagedTar(f"it is not a whole uncompressed tar archive ({error})") from None
    _check_end(window, end)


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.issparse():
        return Kind.OTHER
    if member.isreg():
        return Kind.FILE
    if member.isdir():
        return Kind.FOLDER
    return Kind.LINK if member.islnk() or member.issym() else Kind.OTHER


def _check_end(window: "_Part", end: int) -> None:
    window.seek(end)
    mark = window.read(_END_MARK_BYTES)
    if any(mark):
        raise DamagedTar(f"it has a damaged header at byte {end}")
    # Some programs write one empty block, not two; none at all means that the end is missing.
    if len(mark) < tarfile.BLOCKSIZE:
        raise DamagedTar(f"it ends after {end} bytes without the end mark")
    while piece := window.read(_PIECE_BYTES):
        if any(piece):
            raise DamagedTar(
                f"it goes on after the end mark at byte {end}: archives cannot be concatenated"
            )


class _Part(Seekable):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._file, self._start = file, start

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size_bytes - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data
