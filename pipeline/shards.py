"""Opens a shard set and reads samples from it.

A set is a folder of tars with labelled JPEGs, an index beside each tar, and a manifest:
shards/README.md documents it for other readers. A set never changes once written, so a sample is
named everywhere by its position in its split: shards in order, samples in order in them.

Legend: N samples of a split.
"""

import hashlib
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.pipeline.manifest import MANIFEST_NAME, Manifest, ShardEntry, read_manifest
from accelssl.pipeline.shard_index import COMPONENTS, ShardIndex, key_of, parse_index

_JPG, _CLS, _JSON = (COMPONENTS.index(ext) for ext in ("jpg", "cls", "json"))
_NOT_AS_WRITTEN = (
    "Restore the file as it was written, or write the set again with `accelssl shard-imagenet`."
)

Int64 = npt.NDArray[np.int64]


class ShardSet:
    """An opened shard set; see `open_shards`."""

    def __init__(self, root: Path, manifest: Manifest, digest: str) -> None:
        self.root = root
        self.manifest = manifest
        self.digest = digest
        """The sha256 of the manifest in hex: two sets with the same digest hold the same bytes."""
        self.classes: tuple[str, ...] = manifest.classes
        self.splits: tuple[str, ...] = tuple(manifest.splits)
        self._split_named = {
            name: Split(name, root, entry.shards, len(manifest.classes))
            for name, entry in manifest.splits.items()
        }

    def split(self, name: str) -> "Split":
        """The split of that name, or UserError."""
        if name not in self._split_named:
            raise UserError(
                f"{self.root} has no split {name!r}.",
                f"Its splits are: {', '.join(self.splits)}.",
            )
        return self._split_named[name]


def open_shards(root: Path) -> ShardSet:
    """Open the shard set in a folder, in seconds for ImageNet-1k.

    Checks that every tar is there with the size in the manifest, and every index with the sha256 in
    the manifest and offsets that fit its tar. The tars' own sha256 are not computed.
    Raises UserError for anything missing, foreign or stale.
    """
    manifest, digest = read_manifest(root)
    return ShardSet(root, manifest, digest)


class Split:
    """A split's samples, to be read by position, from any number of threads.

    For the sample i: `tar_number[i]` is a position in `tars`, `image_offset[i]` and
    `image_size_bytes[i]` locate its JPEG in that tar, and alike for `label_...` (decimal text) and
    `json_...`. All are arrays [N], int64 but for the int32 `tar_number`.
    """

    def __init__(self, name: str, root: Path, shards: tuple[ShardEntry, ...], classes: int) -> None:
        self.name = name
        self.tars: tuple[Path, ...] = tuple(root / f"{shard.name}.tar" for shard in shards)
        self._classes = classes
        indexes = [_open_index(root, shard) for shard in shards]
        samples = [shard.samples for shard in shards]
        self._first_of_tar = np.concatenate(([0], np.cumsum(samples, dtype=np.int64)))
        self.tar_number: npt.NDArray[np.int32] = np.repeat(
            np.arange(len(shards), dtype=np.int32), samples
        )
        offset_NC = np.concatenate([index.offset_NC for index in indexes])
        size_bytes_NC = np.concatenate([index.size_bytes_NC for index in indexes])
        self.image_offset: Int64 = offset_NC[:, _JPG]
        self.label_offset: Int64 = offset_NC[:, _CLS]
        self.json_offset: Int64 = offset_NC[:, _JSON]
        self.image_size_bytes: Int64 = size_bytes_NC[:, _JPG]
        self.label_size_bytes: Int64 = size_bytes_NC[:, _CLS]
        self.json_size_bytes: Int64 = size_bytes_NC[:, _JSON]
        self._descriptors: dict[int, int] = {}
        self._opening = threading.Lock()
        weakref.finalize(self, _close_all, self._descriptors)

    def __len__(self) -> int:
        return len(self.tar_number)

    def read(self, i: int) -> tuple[bytes, int]:
        """The sample i: its encoded image and its label, a position in the set's classes.

        Raises IndexError outside 0 <= i < len(self), and UserError naming tar and key when the tar
        cannot be read, is cut short, or holds no label in range there.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of split {self.name}, which has {len(self)}")
        image = self._pread(i, int(self.image_offset[i]), int(self.image_size_bytes[i]))
        label = self._pread(i, int(self.label_offset[i]), int(self.label_size_bytes[i]))
        # isdigit() of bytes is ASCII alone: int() would also take signs, blanks and underscores.
        if not label.isdigit() or int(label) >= self._classes:
            raise UserError(
                f"{self.describe(i)} has the label {label[:20]!r}, not 0 to {self._classes - 1}.",
                _NOT_AS_WRITTEN,
            )
        return image, int(label)

    def describe(self, i: int) -> str:
        """The sample i for messages, as in "train-000003.tar: key 00001234"."""
        tar_number = int(self.tar_number[i])
        tar, sample = self.tars[tar_number], i - int(self._first_of_tar[tar_number])
        try:
            key = key_of(tar.with_suffix(".idx").read_bytes(), sample)
        except (OSError, IndexError):  # a message must not fail because the index has gone since
            return f"{tar.name}: sample {sample}"
        return f"{tar.name}: key {key}"

    def _pread(self, i: int, offset: int, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._descriptor(int(self.tar_number[i])), size_bytes, offset)
        except OSError as error:
            raise UserError(
                f"{self.describe(i)} cannot be read: {error.strerror}.",
                "Check that the set's storage is there and that its files may be read.",
            ) from error
        if len(data) != size_bytes:
            raise UserError(
                f"{self.describe(i)} ends after {len(data)} of {size_bytes} bytes.", _NOT_AS_WRITTEN
            )
        return data

    def _descriptor(self, tar_number: int) -> int:
        descriptor = self._descriptors.get(tar_number)
        if descriptor is None:
            with self._opening:
                if tar_number not in self._descriptors:
                    flags = os.O_RDONLY | os.O_CLOEXEC
                    self._descriptors[tar_number] = os.open(self.tars[tar_number], flags)
                descriptor = self._descriptors[tar_number]
        return descriptor


def _close_all(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _open_index(root: Path, shard: ShardEntry) -> ShardIndex:
    """The index of a shard, after checking both its files against the manifest."""
    tar, idx = root / f"{shard.name}.tar", root / f"{shard.name}.idx"
    try:
        tar_bytes = tar.stat().st_size
        text = idx.read_bytes()
    except OSError as error:
        raise UserError(
            f"{error.filename} is in the manifest but cannot be read: {error.strerror}.",
            _NOT_AS_WRITTEN,
        ) from None
    if tar_bytes != shard.tar_bytes:
        raise UserError(
            f"{tar} has {tar_bytes} bytes, not the {shard.tar_bytes} in {MANIFEST_NAME}.",
            _NOT_AS_WRITTEN,
        )
    if hashlib.sha256(text).hexdigest() != shard.idx_sha256:
        raise UserError(f"{idx} is not the index in {MANIFEST_NAME}.", _NOT_AS_WRITTEN)
    try:
        return parse_index(text, shard.samples, tar_bytes)
    except ValueError as error:
        raise UserError(
            f"{idx} is not the index of {tar.name}: {error}.", _NOT_AS_WRITTEN
        ) from None
