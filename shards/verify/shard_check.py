"""Check of one shard in one pass over its tar: checksums, layout, labels, images.

A shard's outcome depends on its files and its task alone: any number of processes can check shards
side by side.
"""

import hashlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from accelssl.shards.storage.storage import Location, Storage, open_storage
from accelssl.shards.tars.hashed_file import HashedFile
from accelssl.shards.verify.findings import CHECKSUMS, FILES, INDEX, Findings
from accelssl.shards.verify.index_rows import IndexRows, is_laid_out
from accelssl.shards.verify.manifest_checks import ExpectedShard
from accelssl.shards.verify.sample_content import Content, ContentReader
from accelssl.shards.verify.shard_layout import ShardLayout
from accelssl.shards.verify.storage_file import StorageFile

_BUFFER_BYTES = 1 << 16


@dataclass(frozen=True)
class ShardTask:
    """A shard to check. The sizes are those of the files that are there; None is a missing one.

    `to_decode` names images by their position in the shard; None is all.
    """

    location: Location
    shard: ExpectedShard
    classes: tuple[str, ...] | None
    components: tuple[str, ...]
    is_adopted: bool
    tar_bytes: int | None
    idx_bytes: int | None
    to_decode: frozenset[int] | None

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return (self.tar_bytes or 0) + (self.idx_bytes or 0)


@dataclass(frozen=True)
class CheckedShard:
    """Findings and content of a shard. `content` is None without a tar."""

    shard: ExpectedShard
    findings: Findings
    content: Content | None
    hashed: int
    """Number of the shard's two files whose sha256 was compared."""


def check_shard(task: ShardTask, on_bytes: Callable[[int], None]) -> CheckedShard:
    """Check a shard; `on_bytes` gets the number of bytes read since it was last called.

    Holds one image and at most 28 MiB of the tar in memory. An unreadable file is a problem.
    """
    storage = open_storage(task.location)
    findings = Findings()
    rows, hashed = _read_index(task, storage, findings)
    on_bytes(task.idx_bytes or 0)
    if task.tar_bytes is None:
        return CheckedShard(task.shard, findings, None, hashed)
    tar = f"{task.shard.name}.tar"
    with warnings.catch_warnings(), StorageFile(storage, tar, task.tar_bytes) as raw:
        # Pillow warns about every odd EXIF block; what matters is judged.
        warnings.simplefilter("ignore")
        with (
            HashedFile(raw, on_bytes) as to_hash,
            io.BufferedReader(to_hash, _BUFFER_BYTES) as file,
        ):
            content = ContentReader(tar, file, task.classes, findings, is_adopted=task.is_adopted)
            layout = ShardLayout(
                task.shard.name, file, task.tar_bytes, rows, task.components, findings
            )
            try:
                _read_samples(task, layout, content)
                hashed += _is_hashed(tar, task.shard.tar_sha256, to_hash.sha256(), findings)
            except OSError as error:
                findings.wrong(FILES, "a tar cannot be read", tar, error.strerror or str(error))
    return CheckedShard(task.shard, findings, content.content(), hashed)


def _read_index(
    task: ShardTask, storage: Storage, findings: Findings
) -> tuple[IndexRows | None, int]:
    """Return the index, or None if it is unusable, and 1 if its sha256 was compared, else 0."""
    idx = f"{task.shard.name}.idx"
    if task.idx_bytes is None:
        return None, 0
    try:
        text = storage.read(idx)
    except OSError as error:
        findings.wrong(FILES, "an idx cannot be read", idx, error.strerror or str(error))
        return None, 0
    sha256 = hashlib.sha256(text).hexdigest()
    hashed = _is_hashed(idx, task.shard.idx_sha256, sha256, findings)
    # Offsets are judged by the tar as it was: of one that was cut, the rest is checked.
    tar_bytes = task.shard.tar_bytes if task.shard.tar_bytes is not None else task.tar_bytes
    try:
        rows = IndexRows(text, task.shard.samples, tar_bytes or 0, task.components)
    except (ValueError, OverflowError) as error:
        findings.wrong(INDEX, "the index is unusable", idx, str(error))
        return None, hashed
    if not is_laid_out(text, task.components):
        findings.wrong(INDEX, "the index is not a line a sample", idx, "its words are all there")
    return rows, hashed


def _read_samples(task: ShardTask, layout: ShardLayout, content: ContentReader) -> None:
    for number, sample in enumerate(layout.samples(task.is_adopted)):
        content.take(sample, task.to_decode is None or number in task.to_decode)


def _is_hashed(name: str, expected: str | None, actual: str, findings: Findings) -> bool:
    if expected is None:
        return False
    if actual != expected:
        what = f"its sha256 is {actual[:12]}..., not the {expected[:12]}... in the manifest"
        findings.wrong(CHECKSUMS, "other bytes than were written", name, what)
    return True
