"""Check of one tar that others wrote, and its index under a name ending in .part."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from accelssl.shards.adopt.adoption import Finding
from accelssl.shards.adopt.tar_judge import TarJudge
from accelssl.shards.shard_index import COMPONENTS, Extent, index_text
from accelssl.shards.storage.folder import PART
from accelssl.shards.tars.hashed_file import HashedFile
from accelssl.shards.tars.tar_members import DamagedTar, tar_members
from accelssl.shards.tars.tar_samples import tar_samples

_BUFFER_BYTES = 1 << 20
# The first bytes of what compressors write, and what undoes it.
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\x04\x22\x4d\x18": "unlz4",
}
# The index separates words by these; it has no way to write them.
_BLANKS = dict.fromkeys(map(ord, " \t\n\r\v\f"), "_")


@dataclass(frozen=True)
class TarToCheck:
    """A tar, and the number of classes if known."""

    path: Path
    classes: int | None

    @property
    def index_part(self) -> Path:
        """Path of the unfinished index."""
        return self.path.with_name(self.path.name.removesuffix(".tar") + ".idx" + PART)


@dataclass(frozen=True)
class CheckedTar:
    """Facts about a tar. Its index is usable if there are samples and no problems.

    `with_json` counts the samples that have a JSON member; `wnids` has the class name by label, if
    each sample's JSON has one and they agree.
    """

    samples: int
    size_bytes: int
    sha256: str
    with_json: int
    labels: frozenset[int]
    wnids: dict[int, str] | None
    skipped: tuple[Finding, ...]
    problems: tuple[Finding, ...]

    @property
    def has_json(self) -> bool:
        """True if all samples have a JSON member."""
        return self.with_json == self.samples


def check_tar(tar: TarToCheck, on_bytes: Callable[[int], None]) -> CheckedTar:
    """Read the tar once, from front to end, and write its index to `tar.index_part`.

    The index has the JSON member if all samples of the tar have one. Holds one image at a time,
    and about 1 kB for each sample. `on_bytes` gets the number of bytes read since the last
    call. Raises OSError when the index cannot be written; an unreadable tar is a problem of
    the tar.
    """
    tar.index_part.unlink(missing_ok=True)
    # Opened first: that a folder cannot be written shows before hours of reading.
    with tar.index_part.open("xb") as part, warnings.catch_warnings():
        # Pillow warns about every odd EXIF block; what matters is counted in the report.
        warnings.simplefilter("ignore")
        try:
            if not S_ISREG(tar.path.stat().st_mode):  # to open a pipe would be to wait for ever
                raise OSError(EINVAL, "it is no file")
            checked, index = _read(tar, on_bytes)
        except OSError as error:
            problem = Finding("it cannot be read", error.strerror or str(error))
            return CheckedTar(0, 0, "", 0, frozenset(), None, (), (problem,))
        part.write(index)
    return checked


def _read(tar: TarToCheck, on_bytes: Callable[[int], None]) -> tuple[CheckedTar, bytes]:
    with tar.path.open("rb", buffering=0) as raw, HashedFile(raw, on_bytes) as hashed:
        file = io.BufferedReader(hashed, _BUFFER_BYTES)
        judge = TarJudge(file, tar.classes)
        keys: list[str] = []
        extents: list[list[Extent]] = []
        damage = None
        try:
            for sample in tar_samples(map(judge.read, tar_members(file)), judge.take_stray):
                found = judge.judge(sample)
                if found:
                    keys.append(sample.key.translate(_BLANKS))
                    extents.append(found)
        except DamagedTar as error:
            damage = Finding(*_damage(file, error))
        judge.finish()
        has_json = judge.with_json == len(keys)
        components = COMPONENTS if has_json else COMPONENTS[:2]
        # Names may hold bytes that are no text; an index is text.
        index = index_text(keys, [e[: len(components)] for e in extents], components)
        checked = CheckedTar(
            samples=len(keys),
            sha256=hashed.sha256(),
            size_bytes=hashed.size_bytes,
            with_json=judge.with_json,
            labels=frozenset(judge.labels),
            wnids=judge.wnids,
            skipped=tuple(judge.skipped.found.values()),
            problems=(*([damage] if damage else []), *judge.problems.found.values()),
        )
        return checked, index.encode(errors="backslashreplace")


def _damage(file: BinaryIO, error: DamagedTar) -> tuple[str, str]:
    """Describe the damage of the archive: (kind, details)."""
    file.seek(0)
    begin = file.read(max(map(len, _COMPRESSED)))
    for magic, program in _COMPRESSED.items():
        if begin.startswith(magic):
            return "it is compressed", f"unpack it with {program} first"
    return "it is damaged", str(error)
