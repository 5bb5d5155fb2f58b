"""The images of a source in a compact form: 1.28 million of them in about 150 MB."""

import errno
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from accelssl.pipeline.sources.image_name import with_appended
from accelssl.pipeline.sources.source import Ignored, SourceImage

# In place of an offset: the image is a file of its own in the folder that is its container.
WHOLE_FILE = -1
WHOLE_FILE_WITH_APPENDED_CLASS = -2


@dataclass(frozen=True, slots=True)
class SplitListing:
    """The images of a split in order, as columns.

    An image is named `names[i]`, has the class `labels[i]`, and is `sizes_bytes[i]` bytes at
    `offsets[i]` of the tar `containers[container_numbers[i]]`, or a file of the folder that is.
    """

    containers: tuple[str, ...]
    names: list[str]
    labels: "array[int]"
    container_numbers: "array[int]"
    offsets: "array[int]"
    sizes_bytes: "array[int]"


class Listing:
    """Labelled images sorted by class and name, with what else the source told: a `Source`."""

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
        """The number of images in a split."""
        return len(self._splits[split].names)

    def image(self, split: str, i: int) -> SourceImage:
        """The i-th image of a split, by class and then by file name."""
        listed = self._splits[split]
        label, name, offset = listed.labels[i], listed.names[i], listed.offsets[i]
        wnid = self.classes[label]
        container = listed.containers[listed.container_numbers[i]]
        if offset >= 0:
            return TarImage(label, wnid, name, container, offset, listed.sizes_bytes[i])
        appended = offset == WHOLE_FILE_WITH_APPENDED_CLASS
        file_name = with_appended(name, wnid) if appended else name
        return FileImage(label, wnid, name, os.path.join(container, file_name))  # noqa: PTH118


@dataclass(frozen=True, slots=True)
class FileImage:
    """An image that is a file."""

    label: int
    wnid: str
    name: str
    path: str

    def read(self) -> bytes:
        """The file's bytes, or OSError."""
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

    def read(self) -> bytes:
        """The image's bytes, or OSError, also when the tar is shorter than it was when listed."""
        with open(self.tar, "rb", buffering=0) as file:  # noqa: PTH123
            data = b""
            # One read nearly always suffices; some file systems give less than asked for.
            while len(data) < self.size_bytes:
                piece = os.pread(
                    file.fileno(), self.size_bytes - len(data), self.offset + len(data)
                )
                if not piece:
                    raise OSError(errno.EIO, "the archive has become shorter", self.tar)
                data += piece
        return data
