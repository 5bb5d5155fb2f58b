"""Writing one shard: a tar of checked images and its index.

A shard depends on its plan alone, so any number of processes can write shards side by side and the
bytes come out the same. Files are written under a name ending in .part; giving them their final
name is left to the caller, so that no reader ever sees half a tar.
"""

import errno
import hashlib
import json
import os
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from accelssl.errors import UserError
from accelssl.shards.images.image_check import CheckedImage, UnusableImage, check_image
from accelssl.shards.shard_index import COMPONENTS, Extent, index_text
from accelssl.shards.sources.source import SourceImage
from accelssl.shards.storage.folder import PART

_KEY_DIGITS = 8
_MOST_BYTES_OF_A_PICTURE = 1 << 30


@dataclass(frozen=True)
class ShardPlan:
    """The planned content of a shard. Keys count up from `first_key`, one for each image."""

    split: str
    stem: Path
    """Where to write, without ".tar" and ".part"."""
    first_key: int
    images: tuple[SourceImage, ...]
    max_side: int | None = None
    """Pictures with a longer side of more pixels are made smaller."""
    short_side: int | None = None
    """Pictures with a shorter side of more pixels are made smaller."""


@dataclass(frozen=True)
class Quarantined:
    """An image that could not be written."""

    wnid: str
    name: str
    reason: str


@dataclass(frozen=True)
class WrittenShard:
    """A written shard. `transcoded` counts written samples by the reason for transcoding."""

    plan: ShardPlan
    samples: int
    tar_bytes: int
    tar_sha256: str
    idx_bytes: int
    idx_sha256: str
    transcoded: Mapping[str, int]
    quarantined: tuple[Quarantined, ...]


def write_shard(plan: ShardPlan, on_step: Callable[[int], None]) -> WrittenShard:
    """Write `<stem>.tar.part` and `<stem>.idx.part`, both flushed to disk.

    Holds one image in memory at a time. Calls `on_step(1)` after each image. A key is skipped where
    an image is quarantined. Raises OSError when the files cannot be written.
    """
    keys: list[str] = []
    extents: list[list[Extent]] = []
    transcoded: Counter[str] = Counter()
    quarantined: list[Quarantined] = []
    with _new_file(plan.stem, ".tar") as file, warnings.catch_warnings():
        # Pillow warns about every odd EXIF block; what matters is counted in the report.
        warnings.simplefilter("ignore")
        tar = _TarWriter(file)
        for key_number, image in enumerate(plan.images, plan.first_key):
            checked = _checked(image, plan)
            if isinstance(checked, Quarantined):
                quarantined.append(checked)
            else:
                keys.append(f"{key_number:0{_KEY_DIGITS}d}")
                extents.append(_add_sample(tar, keys[-1], image, checked.jpeg))
                if checked.transcoded_because is not None:
                    transcoded[checked.transcoded_because] += 1
            on_step(1)
        tar.finish()
        _flush(file)
    index = index_text(keys, extents).encode()
    with _new_file(plan.stem, ".idx") as file:
        file.write(index)
        _flush(file)
    return WrittenShard(
        plan=plan,
        samples=len(keys),
        tar_bytes=tar.size_bytes,
        tar_sha256=tar.sha256.hexdigest(),
        idx_bytes=len(index),
        idx_sha256=hashlib.sha256(index).hexdigest(),
        transcoded=dict(transcoded),
        quarantined=tuple(quarantined),
    )


def _checked(image: SourceImage, plan: ShardPlan) -> CheckedImage | Quarantined:
    try:
        return check_image(image.read(), plan.max_side, plan.short_side)
    except UnusableImage as error:
        return Quarantined(image.wnid, image.name, str(error))
    except OSError as error:
        if not _is_the_files_own(error):
            raise UserError(
                f"The source became unreadable: {error.filename}: {error.strerror}.",
                "Make it readable and run the same command: it continues from the finished shards.",
            ) from error
        return Quarantined(image.wnid, image.name, f"cannot be read: {error.strerror}")
    except MemoryError:
        if _memory_is_short():
            raise UserError(
                f"There is not enough memory to decode {image.wnid}/{image.name}.",
                "Run the same command with fewer workers: it continues from the finished shards.",
            ) from None
        return Quarantined(image.wnid, image.name, "asks for more memory than any picture")


def _is_the_files_own(error: OSError) -> bool:
    """Return True if only this file is unreadable, and not its disk or network."""
    if error.errno == errno.ENOENT:
        # Listed a moment ago: only a link to nothing is listed without being there.
        return error.filename is not None and Path(error.filename).is_symlink()
    return error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR)


def _memory_is_short() -> bool:
    try:
        bytearray(_MOST_BYTES_OF_A_PICTURE)
    except MemoryError:
        return True
    return False


def _add_sample(tar: "_TarWriter", key: str, image: SourceImage, jpeg: bytes) -> list[Extent]:
    # Plain ASCII whatever the file was called.
    about = json.dumps({"wnid": image.wnid, "name": image.name})
    data = {"jpg": jpeg, "cls": str(image.label).encode(), "json": about.encode()}
    return [tar.add(f"{key}.{ext}", data[ext]) for ext in COMPONENTS]


class _TarWriter:
    """A ustar archive to which files are appended.

    Time, owner and mode are constants: the archive's bytes depend on the files' bytes alone.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size_bytes = 0
        self.sha256 = hashlib.sha256()

    def add(self, name: str, data: bytes) -> Extent:
        header = tarfile.TarInfo(name)
        header.size = len(data)
        self._write(header.tobuf(tarfile.USTAR_FORMAT))
        extent = Extent(self.size_bytes, len(data))
        self._write(data)
        self._write(bytes(-len(data) % tarfile.BLOCKSIZE))
        return extent

    def finish(self) -> None:
        """Write two empty blocks, filled up to a whole record as tar programs do."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._write(bytes(-self.size_bytes % tarfile.RECORDSIZE))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.sha256.update(data)
        self.size_bytes += len(data)


def _new_file(stem: Path, suffix: str) -> IO[bytes]:
    path = stem.with_name(stem.name + suffix + PART)
    # Never write into a leftover: a process of a killed job might still hold it open.
    path.unlink(missing_ok=True)
    return path.open("xb")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
