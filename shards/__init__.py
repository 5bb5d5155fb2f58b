"""Shard sets on disk or in S3: read, write, verify and adopt WebDataset tars."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelssl.shards.webdataset import webdataset_of

__all__ = ["webdataset_of"]


def __getattr__(name: str) -> object:
    """Import `webdataset_of` at its first use: the webdataset library imports torch."""
    if name == "webdataset_of":
        from accelssl.shards.webdataset import webdataset_of

        return webdataset_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
