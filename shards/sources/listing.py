"""The images of a source in a compact form: 1.28 million of them in about 150 MB."""

import errno
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Self

from accelssl.shards.sources.image_name import with_appended
from accelssl.shards.sources.source import Ignored, SourceChanged, SourceImage

# In place of an offset: the image is a file of its own in the folder that is its container. Below
# it: so it is, with a wnid appended to its name, which is this far below.
WHOLE_FILE = -1


def whole_file_with_appended(wnid: str) -> int:
    """Return the value in place of an offset for a file with this wnid appended to its name.

    Kept apart from the image's class, which may be given another name.
    """
    return WHOLE_FILE - 1 - int(wnid[1:])


class Stamp(NamedTuple):
    """The identity of a file and its version: another file or another content differs."""

    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: BinaryIO) -> Self:
        """Return the stamp of an open file."""
        status = os.fstat(file.fileno())
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class Container(NamedTuple):
    """A folder, or a tar with its stamp from when its images were listed."""

    path: str
    stamp: Stamp | None


@dataclass(frozen=True, slots=True)
class SplitListing:
    """The images of a split in order, as columns.

    An image is named `names[i]`, has the class `labels[i]`, and is `sizes_bytes[i]` bytes at
    `offsets[i]` of the tar `containers[container_numbers[i]]`, or a file of the folder that is.
    """

    containers: tuple[Container, ...]
    names: list[str]
    labels: "array[int]"
    container_numbers: "array[int]"
    offsets: "array[int]"
    sizes_bytes: "array[int]"


class Listing:
    """A `Source` of listed images, sorted by class and name."""

    def __init__(
        self,
        classes: tuple[str, ...],
        splits: Mapping[str, SplitListing],
        *,
        options: Mapping[str, int | str],
        ignored: Ignored,
        notes: tuple[str, ...],
    ) -> None:
        self.classes = classes
        self.splits: tuple[str, ...] = tuple(splits)
        self.options = options
        self.ignored = ignored
        self.notes = notes
        self._splits = dict(splits)

    def count(self, split: str) -> int:
        """Return the number of images in a split."""
        return len(self._splits[split].names)

    def image(self, split: str, i: int) -> SourceImage:
        """Return the i-th image of a split, by class and then by file name."""
        listed = self._splits[split]
        label, name, offset = listed.labels[i], listed.names[i], listed.offsets[i]
        wnid = self.classes[label]
        path, stamp = listed.containers[listed.container_numbers[i]]
        if stamp is not None:
            return TarImage(label, wnid, name, path, offset, listed.sizes_bytes[i], stamp)
        file_name = name
        if offset < WHOLE_FILE:
            file_name = with_appended(name, f"n{WHOLE_FILE - 1 - offset:08d}")
        return FileImage(label, wnid, name, os.path.join(path, file_name))  # noqa: PTH118


@dataclass(frozen=True, slots=True)
class FileImage:
    """An image that is a file."""

    label: int
    wnid: str
    name: str
    path: str

    def read(self) -> bytes:
        """Return the file's bytes. Raise OSError if the file cannot be read."""
        with open(self.path, "rb") as file:  # noqa: PTH123 - no Path for each of 1.28M
            return file.read()


@dataclass(frozen=True, slots=True)
class TarImage:
    """An image that lies in an uncompressed tar."""

    label: int
    wnid: str
    name: str
    tar: str
    offset: int
    size_bytes: int
    stamp: Stamp

    def read(self) -> bytes:
        """Return the image's bytes. Raise SourceChanged for a changed tar, or OSError."""
        with open(self.tar, "rb", buffering=0) as file:  # noqa: PTH123
            data = b""
            # One read nearly always suffices; some file systems give less than asked for.
            while len(data) < self.size_bytes:
                piece = os.pread(
                    file.fileno(), self.size_bytes - len(data), self.offset + len(data)
                )
                if not piece:
                    break
                data += piece
            # After reading, so that a change up to then is noticed.
            is_same = Stamp.of(file) == self.stamp
        if not is_same:
            raise SourceChanged(
                f"The source {self.tar} changed while it was read.",
                "Put it back and run the same command again, or start anew in another folder.",
            )
        if len(data) < self.size_bytes:
            raise OSError(errno.EIO, "the archive is shorter than it says", self.tar)
        return data
