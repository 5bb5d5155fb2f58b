"""A hashed file gives the bytes of a plain one, and their hash, however it is read."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelssl.shards.tars.hashed_file import HashedFile

SIZE_BYTES = 3_000_017


@pytest.mark.parametrize("buffer_bytes", [1, 512, 1 << 20])
def test_any_order_of_reads_gives_the_same_bytes_and_hash(
    tmp_path: Path, buffer_bytes: int
) -> None:
    rng = np.random.default_rng(buffer_bytes)
    data = rng.bytes(SIZE_BYTES)
    (tmp_path / "file").write_bytes(data)
    steps: list[int] = []
    with (tmp_path / "file").open("rb", buffering=0) as raw:
        hashed = HashedFile(raw, steps.append)
        file, plain = io.BufferedReader(hashed, buffer_bytes), io.BytesIO(data)
        for _ in range(200):
            at, size_bytes = rng.integers(0, SIZE_BYTES + 1000), rng.choice([0, 1, 512, 70_000])
            whence = rng.choice([io.SEEK_SET, io.SEEK_END])
            offset = int(at) if whence == io.SEEK_SET else -min(int(at), SIZE_BYTES)
            assert file.seek(offset, int(whence)) == plain.seek(offset, int(whence))
            assert file.read(int(size_bytes)) == plain.read(int(size_bytes))
            assert file.tell() == plain.tell()
            relative = int(rng.integers(0, 1000))
            assert file.seek(relative, io.SEEK_CUR) == plain.seek(relative, io.SEEK_CUR)
        assert hashed.sha256() == hashlib.sha256(data).hexdigest()
        assert hashed.size_bytes == sum(steps) == SIZE_BYTES


def test_a_file_that_was_not_read_has_its_hash_too(tmp_path: Path) -> None:
    for data in (b"", b"abc"):
        (tmp_path / "file").write_bytes(data)
        with (tmp_path / "file").open("rb", buffering=0) as raw:
            assert HashedFile(raw, lambda _: None).sha256() == hashlib.sha256(data).hexdigest()


def test_reading_front_to_end_reads_each_byte_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(SIZE_BYTES))

    class Counted(io.FileIO):
        read_bytes = 0

        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer) or 0
            self.read_bytes += count
            return count

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size) or b""
            self.read_bytes += len(data)
            return data

    with Counted(tmp_path / "file") as raw:
        hashed = HashedFile(raw, lambda _: None)
        file = io.BufferedReader(hashed, 1 << 16)
        for at in range(0, SIZE_BYTES, 200_000):
            file.seek(at)
            file.read(512)
            file.read(90_000)
        hashed.sha256()
        assert raw.read_bytes == SIZE_BYTES
