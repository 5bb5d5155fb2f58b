"""The one way a shard set's files are read and written, wherever they are kept.

A storage is flat: names have no folders in them. Whatever goes wrong is an OSError with a strerror
a user can read, as from the operating system: FileNotFoundError for a name that is not there.
"""

from pathlib import Path
from typing import Protocol

from accelssl.errors import UserError

Location = str | Path
"""A folder, or a URL such as "s3://bucket/prefix" (as text: a Path would lose a slash)."""

S3_SCHEME = "s3:"


class Storage(Protocol):
    """A place for files. Every method may be called from any number of threads."""

    @property
    def location(self) -> str:
        """What the user calls it."""

    @property
    def parallel_reads(self) -> int:
        """How many reads at a time get the most out of it."""

    def exists(self) -> bool:
        """Whether there is a place of that name, empty or not."""

    def names(self) -> list[str]:
        """The names of all files and folders in it, sorted."""

    def sizes_bytes(self) -> dict[str, int]:
        """The sizes of all files in it, by name."""

    def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """A file's bytes from offset; fewer than asked for only where the file ends."""

    def read_into(self, name: str, offset: int, memory: memoryview) -> int:
        """Fill `memory` with a file's bytes from offset; how many those are, as for `read`."""

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a file: at any moment there is the old one or the new one, in full.

        It is there to stay, even through a power cut, when this returns.
        """

    def take(self, path: Path, name: str) -> None:
        """Like write, with the content of a local file, which is gone afterwards."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is not there."""

    def path_of(self, name: str) -> str:
        """What the user calls that file; what DALI and others open."""


def absolute(location: str) -> str:
    """The same place, named so that it is found from any working folder."""
    return (
        location
        if "://" in location or location.startswith(S3_SCHEME)
        else str(Path(location).absolute())
    )


def open_storage(location: Location) -> Storage:
    """The storage at a location. Raises UserError for a URL of another kind than s3://."""
    # Imported where needed: boto3 is an extra, and takes a second. What a Path made of a URL,
    # s3:/bucket, goes there too, to be refused.
    if str(location).startswith(S3_SCHEME):
        from accelssl.shards.storage.s3 import S3Prefix

        return S3Prefix(str(location))
    from accelssl.shards.storage.folder import Folder

    return Folder(location)


def remedy(location: Location) -> str:
    """What to do about a place that cannot be read or written."""
    if str(location).startswith(S3_SCHEME):
        return "Check the bucket's name, your credentials, and AWS_ENDPOINT_URL if you use it."
    return "Check the path and its permissions."


def listed_sizes_bytes(storage: Storage) -> dict[str, int]:
    """`storage.sizes_bytes()`, or UserError where it cannot be listed."""
    try:
        return storage.sizes_bytes()
    except OSError as error:
        raise UserError(
            f"{storage.location} cannot be listed: {error.strerror}.",
            remedy(storage.location),
        ) from None
