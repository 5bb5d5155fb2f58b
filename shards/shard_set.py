"""Opening a shard set and reading its samples.

A set is a folder (or a prefix of an object store) of tars with labelled JPEGs, an index beside each
tar, and a manifest: shards/README.md documents it for other readers. A set never changes once
written, so a sample is named everywhere by its position in its split: shards in order, samples in
order in them.

Legend: N samples of a split.
"""

import errno
import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.shards.manifest import MANIFEST_NAME, Manifest, ShardEntry, read_manifest
from accelssl.shards.open_files import allow_open_files
from accelssl.shards.shard_index import COMPONENTS, ShardIndex, key_of, parse_index
from accelssl.shards.storage.storage import (
    Location,
    Storage,
    listed_sizes_bytes,
    open_storage,
)

_JPG, _CLS = COMPONENTS.index("jpg"), COMPONENTS.index("cls")
_NOT_AS_WRITTEN = (
    "Restore the file as it was written, or write the set again with `accelssl shard-imagenet`."
)

# One read for both where no more than headers and padding lies between: on object storage a second
# request costs more than the bytes.
_NEIGHBOURS_BYTES = 4096

Int64 = npt.NDArray[np.int64]


class ShardSet:
    """An opened shard set; see `open_shards`."""

    def __init__(self, storage: Storage, manifest: Manifest, digest: str) -> None:
        self.storage = storage
        self.location = storage.location
        self.manifest = manifest
        self.digest = digest
        """The sha256 of the manifest in hex: two sets with the same digest hold the same bytes."""
        self.classes: tuple[str, ...] = manifest.classes
        self.splits: tuple[str, ...] = tuple(manifest.splits)
        sizes_bytes = listed_sizes_bytes(storage)
        self._split_named = {
            name: Split(name, storage, manifest, digest, sizes_bytes) for name in manifest.splits
        }

    def split(self, name: str) -> "Split":
        """Return a split by its name. Raise UserError for an unknown one."""
        if name not in self._split_named:
            raise UserError(
                f"{self.location} has no split {name!r}.",
                f"Its splits are: {', '.join(self.splits)}.",
            )
        return self._split_named[name]


def open_shards(location: Location) -> ShardSet:
    """Open the shard set in a folder or at an s3:// URL, in seconds for ImageNet-1k.

    Checks that every tar is there with the size in the manifest, and every index with the sha256 in
    the manifest and offsets that fit its tar. The tars' own sha256 are not computed.
    Raises UserError for anything missing, foreign or stale.
    """
    storage = open_storage(location)
    manifest, digest = read_manifest(storage)
    allow_open_files(sum(len(split.shards) for split in manifest.splits.values()))
    return ShardSet(storage, manifest, digest)


class Split:
    """A split's samples, to be read by position, from any number of threads.

    For the sample i: `tar_number[i]` is a position in `shards`, `image_offset[i]` and
    `image_size_bytes[i]` locate its JPEG in that tar, and alike for `label_...` (decimal text);
    `room_bytes[i]` is the memory that `read_into` needs, `image_in_room[i]` where the JPEG begins
    in it. All are arrays [N], int64 but for the int32 `tar_number`. `indexes` has the same by
    shard, with the JSON member where the set has one. `digest` is the set's.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        manifest: Manifest,
        digest: str,
        sizes_bytes: dict[str, int],
    ) -> None:
        self.name = name
        self.storage = storage
        self.digest = digest
        self.shards: tuple[ShardEntry, ...] = manifest.splits[name].shards
        self._classes = len(manifest.classes)
        self.indexes: list[ShardIndex] = _open_indexes(
            storage, self.shards, manifest.components, sizes_bytes
        )
        shards, indexes = self.shards, self.indexes
        samples = [shard.samples for shard in shards]
        self._first_of_tar = np.concatenate(([0], np.cumsum(samples, dtype=np.int64)))
        self.tar_number: npt.NDArray[np.int32] = np.repeat(
            np.arange(len(shards), dtype=np.int32), samples
        )
        offset_NC = np.concatenate([index.offset_NC for index in indexes])
        size_bytes_NC = np.concatenate([index.size_bytes_NC for index in indexes])
        self.image_offset: Int64 = offset_NC[:, _JPG]
        self.label_offset: Int64 = offset_NC[:, _CLS]
        self.image_size_bytes: Int64 = size_bytes_NC[:, _JPG]
        self.label_size_bytes: Int64 = size_bytes_NC[:, _CLS]
        begin = np.minimum(self.image_offset, self.label_offset)
        image_end = self.image_offset + self.image_size_bytes
        span_bytes = np.maximum(image_end, self.label_offset + self.label_size_bytes) - begin
        apart = span_bytes - self.image_size_bytes - self.label_size_bytes > _NEIGHBOURS_BYTES
        self.room_bytes: Int64 = np.where(apart, self.image_size_bytes, span_bytes)
        self.image_in_room: Int64 = np.where(apart, 0, self.image_offset - begin)

    def __len__(self) -> int:
        return len(self.tar_number)

    @property
    def tars(self) -> tuple[str, ...]:
        """The tars in order, as paths or URLs."""
        return tuple(self.storage.path_of(f"{shard.name}.tar") for shard in self.shards)

    def read(self, i: int) -> tuple[bytes, int]:
        """Return the encoded image of the sample i and its label, a position in the set's classes.

        Raises IndexError outside 0 <= i < len(self), and UserError naming tar and key when the tar
        cannot be read, is cut short, or holds no label in range there.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of split {self.name}, which has {len(self)}")
        image, label = self.read_into(i, memoryview(bytearray(int(self.room_bytes[i]))))
        return bytes(image), label

    def read_into(self, i: int, memory: memoryview) -> tuple[memoryview, int]:
        """Read like `read`, but leave the image in `memory`, which has room_bytes[i] bytes.

        A loader reads gigabytes a second: memory that is used again costs a third of new memory.
        """
        image_at, image_bytes = int(self.image_offset[i]), int(self.image_size_bytes[i])
        label_at, label_bytes = int(self.label_offset[i]), int(self.label_size_bytes[i])
        first = min(image_at, label_at)
        if label_at >= first + len(memory):  # far from the image
            image, label = memory, memoryview(bytearray(label_bytes))
            self._fill(i, image_at, image)
            self._fill(i, label_at, label)
        else:
            self._fill(i, first, memory)
            image = memory[image_at - first :][:image_bytes]
            label = memory[label_at - first :][:label_bytes]
        return image, self._label(i, bytes(label))

    def _label(self, i: int, label: bytes) -> int:
        # isdigit() of bytes is ASCII alone: int() would also take signs, blanks and underscores.
        if not label.isdigit() or int(label) >= self._classes:
            raise UserError(
                f"{self.describe(i)} has the label {label[:20]!r}, not 0 to {self._classes - 1}.",
                _NOT_AS_WRITTEN,
            )
        return int(label)

    def describe(self, i: int) -> str:
        """Name the sample i for messages, as in "train-000003.tar: key 00001234"."""
        tar_number = int(self.tar_number[i])
        shard, sample = self.shards[tar_number], i - int(self._first_of_tar[tar_number])
        try:
            key = key_of(self.storage.read(f"{shard.name}.idx"), sample)
        except (OSError, IndexError):  # a message must not fail because the index has gone since
            return f"{shard.name}.tar: sample {sample}"
        return f"{shard.name}.tar: key {key}"

    def _fill(self, i: int, offset: int, memory: memoryview) -> None:
        tar = f"{self.shards[int(self.tar_number[i])].name}.tar"
        try:
            read_bytes = self.storage.read_into(tar, offset, memory)
        except OSError as error:
            raise UserError(
                f"{self.describe(i)} cannot be read: {error.strerror}.",
                f"Raise the limit (ulimit -n) above {len(self.shards)}, or write larger shards."
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else "Check that the set's storage is there and that its files may be read.",
            ) from error
        if read_bytes != len(memory):
            raise UserError(
                f"{self.describe(i)} ends after {read_bytes} of {len(memory)} bytes.",
                _NOT_AS_WRITTEN,
            )


def _open_indexes(
    storage: Storage,
    shards: tuple[ShardEntry, ...],
    components: tuple[str, ...],
    sizes_bytes: dict[str, int],
) -> list[ShardIndex]:
    def opened(shard: ShardEntry) -> ShardIndex:
        return _open_index(storage, shard, components, sizes_bytes.get(f"{shard.name}.tar"))

    with ThreadPoolExecutor(storage.parallel_reads) as pool:
        return list(pool.map(opened, shards))


def _open_index(
    storage: Storage, shard: ShardEntry, components: tuple[str, ...], tar_bytes: int | None
) -> ShardIndex:
    """Check both files of a shard against the manifest and return the index."""
    tar, idx = (storage.path_of(f"{shard.name}.{suffix}") for suffix in ("tar", "idx"))
    if tar_bytes is None:
        raise UserError(f"{tar} is in the manifest but is missing.", _NOT_AS_WRITTEN)
    try:
        text = storage.read(f"{shard.name}.idx")
    except OSError as error:
        raise UserError(
            f"{idx} is in the manifest but cannot be read: {error.strerror}.", _NOT_AS_WRITTEN
        ) from None
    if tar_bytes != shard.tar_bytes:
        raise UserError(
            f"{tar} has {tar_bytes} bytes, not the {shard.tar_bytes} in {MANIFEST_NAME}.",
            _NOT_AS_WRITTEN,
        )
    if hashlib.sha256(text).hexdigest() != shard.idx_sha256:
        raise UserError(f"{idx} is not the index in {MANIFEST_NAME}.", _NOT_AS_WRITTEN)
    try:
        return parse_index(text, shard.samples, tar_bytes, components)
    except ValueError as error:
        raise UserError(
            f"{idx} is not the index of {shard.name}.tar: {error}.", _NOT_AS_WRITTEN
        ) from None
