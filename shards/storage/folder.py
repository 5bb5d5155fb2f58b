"""A local folder as a storage."""

import os
import shutil
import threading
import weakref
from pathlib import Path

from accelssl.errors import UserError

PART = ".part"


class Folder:
    """A `Storage` in a local folder. Unfinished files are called <name>.part."""

    parallel_reads = 1

    def __init__(self, location: str | Path) -> None:
        if "://" in str(location):
            raise UserError(
                f"{location} is a URL of a kind that is not supported.",
                "Use a folder, or s3://bucket/prefix.",
            )
        self.root = Path(location)
        self._descriptors: dict[str, int] = {}
        self._outdated: list[int] = []  # of replaced files; a thread may be reading from them
        self._opening = threading.Lock()
        weakref.finalize(self, _close_all, self._descriptors, self._outdated)

    @property
    def location(self) -> str:
        return str(self.root)

    def exists(self) -> bool:
        return self.root.is_dir()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())

    def sizes_bytes(self) -> dict[str, int]:
        with os.scandir(self.root) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if _is_file(entry)}

    def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        if size_bytes is None:
            with (self.root / name).open("rb") as file:
                file.seek(offset)
                return file.read()
        return os.pread(self._descriptor(name), size_bytes, offset)

    def read_into(self, name: str, offset: int, memory: memoryview) -> int:
        return os.preadv(self._descriptor(name), [memory], offset)

    def write(self, name: str, data: bytes) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        part = self.root / (name + PART)
        # Never write into a leftover: a process of a killed job might still hold it open.
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._put_in_place(part, name)

    def take(self, path: Path, name: str) -> None:
        # Across file systems a move is a copy, which readers could see half of.
        self.root.mkdir(parents=True, exist_ok=True)
        part = self.root / (name + PART)
        if path != part:
            part.unlink(missing_ok=True)
            shutil.move(path, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        self._put_in_place(part, name)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)
        self._forget(name)

    def path_of(self, name: str) -> str:
        return str(self.root / name)

    def _descriptor(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            with self._opening:
                if name not in self._descriptors:
                    flags = os.O_RDONLY | os.O_CLOEXEC
                    self._descriptors[name] = os.open(self.root / name, flags)
                descriptor = self._descriptors[name]
        return descriptor

    def _put_in_place(self, part: Path, name: str) -> None:
        part.replace(self.root / name)
        self._forget(name)
        self._sync()

    def _forget(self, name: str) -> None:
        with self._opening:
            if name in self._descriptors:
                self._outdated.append(self._descriptors.pop(name))

    def _sync(self) -> None:
        """Flush the folder, so that names survive a power cut as the files' bytes do."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _close_all(descriptors: dict[str, int], outdated: list[int]) -> None:
    for descriptor in [*descriptors.values(), *outdated]:
        os.close(descriptor)
