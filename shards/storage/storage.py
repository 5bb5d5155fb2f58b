"""Interface for reading and writing the files of a shard set in any kind of storage.

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
        """The user's name of the place."""

    @property
    def parallel_reads(self) -> int:
        """Number of parallel reads with the best speed."""

    def exists(self) -> bool:
        """Return True if the place exists, empty or not."""

    def names(self) -> list[str]:
        """Return the names of all files and folders in the storage, sorted."""

    def sizes_bytes(self) -> dict[str, int]:
        """Return the sizes of all files in the storage, by name."""

    def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Return a file's bytes from offset; fewer than requested only at the end of the file."""

    def read_into(self, name: str, offset: int, memory: memoryview) -> int:
        """Fill `memory` with a file's bytes from offset and return their number."""

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a file: at any moment the old or the new file is there, in full.

        After the return the file survives a power cut.
        """

    def take(self, path: Path, name: str) -> None:
        """Move a local file into the storage, with the guarantees of `write`."""

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file, for messages and for other readers such as DALI."""


def absolute(location: str) -> str:
    """Return the location as an absolute path; URLs stay as they are."""
    return (
        location
        if "://" in location or location.startswith(S3_SCHEME)
        else str(Path(location).absolute())
    )


def open_storage(location: Location) -> Storage:
    """Open the storage at a location. Raise UserError for a URL of another kind than s3://."""
    # Imported where needed: boto3 is an extra, and takes a second. What a Path made of a URL,
    # s3:/bucket, goes there too, to be refused.
    if str(location).startswith(S3_SCHEME):
        from accelssl.shards.storage.s3 import S3Prefix

        return S3Prefix(str(location))
    from accelssl.shards.storage.folder import Folder

    return Folder(location)


def remedy(location: Location) -> str:
    """Return the advice for a place that cannot be read or written."""
    if str(location).startswith(S3_SCHEME):
        return "Check the bucket's name, your credentials, and AWS_ENDPOINT_URL if you use it."
    return "Check the path and its permissions."


def listed_sizes_bytes(storage: Storage) -> dict[str, int]:
    """Return `storage.sizes_bytes()`. Raise UserError if the files cannot be listed."""
    try:
        return storage.sizes_bytes()
    except OSError as error:
        raise UserError(
            f"{storage.location} cannot be listed: {error.strerror}.",
            remedy(storage.location),
        ) from None
