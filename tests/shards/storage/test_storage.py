"""What every storage promises, checked alike on a folder and on an S3 bucket."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from accelssl.errors import UserError
from accelssl.shards.storage.storage import Storage, open_storage

ODD_NAMES = ["a b.tar", "50%+1.idx", "ünïcode", "%41", "~", "it's (1).tar", "train-000000.tar"]


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that is not there yet, two folders deep."""
    if request.param == "folder":
        return str(tmp_path / "sets" / "a set")
    return f"s3://{request.getfixturevalue('bucket')}/sets/a set"


@pytest.fixture
def storage(location: str) -> Storage:
    return open_storage(location)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_the_location_is_what_the_user_called_it(storage: Storage, location: str) -> None:
    assert storage.location == location
    assert open_storage(location + "/").location == location


def test_files_open_by_the_path_that_users_are_told(storage: Storage, location: str) -> None:
    storage.write("x.tar", b"tar")
    assert storage.path_of("x.tar") == f"{location}/x.tar"
    folder, _, name = storage.path_of("x.tar").rpartition("/")
    assert open_storage(folder).read(name) == b"tar"


def test_a_place_is_there_once_something_is_written(storage: Storage) -> None:
    assert not storage.exists()
    storage.write("x", b"")
    assert storage.exists()
    assert storage.names() == ["x"]
    assert storage.sizes_bytes() == {"x": 0}


def test_a_place_beside_one_whose_name_begins_alike_is_not_there(
    storage: Storage, location: str
) -> None:
    storage.write("x", b"")
    for other in (location[:-1], location + "2"):
        assert not open_storage(other).exists()


def test_a_place_that_is_not_there_cannot_be_listed(storage: Storage) -> None:
    for listed in (storage.names, storage.sizes_bytes):
        with pytest.raises(FileNotFoundError) as caught:
            listed()
        assert caught.value.strerror


def test_a_file_is_not_a_place(storage: Storage) -> None:
    storage.write("x", b"data")
    assert not open_storage(storage.path_of("x")).exists()


def test_names_are_sorted_and_include_folders_but_sizes_are_of_files(
    storage: Storage, location: str
) -> None:
    for size, name in enumerate(["b", "a", "c.idx"]):
        storage.write(name, bytes(size))
    open_storage(f"{location}/ba/deeper").write("file", b"data")
    open_storage(f"{location}/b2").write("file", b"data")
    assert storage.names() == ["a", "b", "b2", "ba", "c.idx"]
    assert storage.sizes_bytes() == {"b": 0, "a": 1, "c.idx": 2}


def test_odd_names_are_names(storage: Storage) -> None:
    for name in ODD_NAMES:
        storage.write(name, name.encode())
    assert storage.names() == sorted(ODD_NAMES)
    assert storage.sizes_bytes() == {name: len(name.encode()) for name in ODD_NAMES}
    for name in ODD_NAMES:
        assert storage.read(name) == storage.read(name, 0, 99) == name.encode()


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_any_range_reads_as_a_slice_of_the_bytes(storage: Storage, size: int) -> None:
    data = random_bytes(size)
    storage.write("x", data)
    for offset in (0, 1, size // 2, max(0, size - 1), size, size + 1, size + 10**6):
        assert storage.read("x", offset) == data[offset:]
        for size_bytes in (0, 1, 2, 511, size, 10**9):
            assert storage.read("x", offset, size_bytes) == data[offset : offset + size_bytes]


def test_a_missing_file_is_reported_by_every_kind_of_read(storage: Storage) -> None:
    storage.write("x", b"data")
    for offset, size_bytes in ((0, None), (3, None), (0, 5), (7, 5), (0, 0)):
        with pytest.raises(FileNotFoundError) as caught:
            storage.read("y", offset, size_bytes)
        assert caught.value.strerror
        assert caught.value.filename is not None
        assert str(caught.value.filename) == storage.path_of("y")


def test_writing_replaces_what_was_there(storage: Storage) -> None:
    for data in (b"a longer text", b"short", b"", b"again"):
        storage.write("x", data)
        assert storage.read("x") == storage.read("x", 0, 100) == data
        assert storage.sizes_bytes() == {"x": len(data)}


def test_taking_moves_a_local_file_in(storage: Storage, tmp_path: Path) -> None:
    data = random_bytes(300_000)
    (tmp_path / "local").write_bytes(data)
    storage.take(tmp_path / "local", "x")
    assert not (tmp_path / "local").exists()
    assert storage.names() == ["x"]
    assert storage.read("x") == data


def test_taking_replaces_what_was_there(storage: Storage, tmp_path: Path) -> None:
    storage.write("x", b"before")
    assert storage.read("x", 0, 100) == b"before"
    (tmp_path / "local").write_bytes(b"and after")
    storage.take(tmp_path / "local", "x")
    assert storage.read("x", 0, 100) == storage.read("x") == b"and after"


def test_taking_a_file_that_is_not_there_changes_nothing(storage: Storage, tmp_path: Path) -> None:
    storage.write("x", b"before")
    with pytest.raises(FileNotFoundError, match="local"):
        storage.take(tmp_path / "local", "x")
    assert storage.names() == ["x"]
    assert storage.read("x") == b"before"


def test_what_is_deleted_is_gone_also_twice(storage: Storage) -> None:
    storage.write("x", b"data")
    storage.write("y", b"other")
    assert storage.read("x", 1, 2) == b"at"
    for _ in range(2):
        storage.delete("x")
        assert storage.names() == ["y"]
        for size_bytes in (2, None):
            with pytest.raises(FileNotFoundError):
                storage.read("x", 1, size_bytes)


def test_many_threads_read_and_write_at_once(storage: Storage, location: str) -> None:
    data = random_bytes(50_000)
    storage.write("x", data)
    fresh = open_storage(location)  # its first use is by all threads at once

    def use(i: int) -> None:
        assert fresh.read("x", i * 97, 300 + i) == data[i * 97 : i * 97 + 300 + i]
        fresh.write(f"own-{i:03}", bytes(i))
        assert fresh.read(f"own-{i:03}", 0, 1000) == bytes(i)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(use, range(100)))
    assert fresh.names() == [*(f"own-{i:03}" for i in range(100)), "x"]


@pytest.mark.parametrize("url", ["gs://bucket/set", "https://host/set", "S3://bucket/set"])
def test_urls_of_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(UserError, match=f"{url}.*s3://bucket/prefix"):
        open_storage(url)
