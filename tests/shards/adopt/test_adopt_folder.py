"""Adopting a folder: which files are taken, what is left behind, workers and interruptions."""

import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.shards.adopt.adopt import index_shards
from accelssl.shards.manifest import read_manifest
from accelssl.shards.storage.folder import Folder
from tests.shards.adopt.tars_of_others import (
    ADOPTED,
    TRUTH,
    Member,
    assert_all_read,
    pack,
    plain,
    read_by_accelssl,
    refusal,
    samples,
)


@pytest.mark.parametrize("name", ["a b", "-a", "ä", "a+b", "a:b"])
def test_a_tar_whose_name_does_not_fit_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    pack(tmp_path / f"{name}.tar", plain(TRUTH))
    assert refusal(tmp_path) == (
        "its name does not fit: rename it to letters, digits, _, - and . alone"
    )


@pytest.mark.parametrize("name", ["a", "_a", "0", "train.v1-0_0", "A..b"])
def test_a_tar_whose_name_fits_can_be_opened(tmp_path: Path, name: str) -> None:
    pack(tmp_path / f"{name}.tar", plain(TRUTH))
    index_shards(tmp_path, workers=1)
    assert read_by_accelssl(tmp_path) == TRUTH


def test_a_tar_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    assert refusal(tmp_path) == "it cannot be read: it is no file"


@pytest.mark.parametrize("members", [[], [("folder/", b"")], [("README", b"")]])
def test_empty_tars_are_left_out_and_named(tmp_path: Path, members: list[Member]) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    pack(tmp_path / "b.tar", members)
    report = index_shards(tmp_path, workers=1)
    assert "left out, as they hold no samples: b.tar" in str(report)
    assert not (tmp_path / "b.idx").exists()
    assert_all_read(tmp_path, TRUTH)


def test_a_folder_of_empty_tars_is_an_error(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", [("README", b"")])
    with pytest.raises(UserError, match=r"hold no samples: a\.tar\."):
        index_shards(tmp_path, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_folder_without_tars_is_an_error_that_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing cannot be read: No such file"):
        index_shards(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file cannot be read: Not a directory"):
        index_shards(tmp_path / "file")
    with pytest.raises(UserError, match=r"has no \.tar files"):
        index_shards(tmp_path)
    for name in ("a.tar.gz", "b.tgz"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"only compressed tars: a\.tar\.gz, b\.tgz\. .*gunzip"):
        index_shards(tmp_path)


def test_compressed_tars_beside_plain_ones_are_named(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    for name in ("a.tar.gz", "b.tar.zst", "._a.tar"):
        (tmp_path / name).touch()
    assert index_shards(tmp_path, workers=1).notes == (
        "left out, as they are compressed: b.tar.zst",
    )


@pytest.mark.parametrize("name", ["manifest.json", "unfinished.json"])
def test_a_set_and_a_set_in_the_making_are_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    (tmp_path / name).write_bytes(b"theirs")
    with pytest.raises(UserError, match=str(tmp_path)) as error:
        index_shards(tmp_path, workers=1)
    assert ("remove" in error.value.remedy) == (name == "manifest.json")
    assert (tmp_path / name).read_bytes() == b"theirs"
    assert not (tmp_path / "a.idx").exists()


def test_an_index_that_differs_is_kept_under_another_name(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    (tmp_path / "a.idx").write_bytes(b"first")
    report = index_shards(tmp_path, workers=1)
    assert "indexes that were there and differed are kept: a.idx.orig" in str(report)
    ours = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "manifest.json").unlink()
    assert index_shards(tmp_path, workers=1).notes == ()
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "a.idx").write_bytes(b"second")
    index_shards(tmp_path, workers=1)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if ".idx" in p.name} == {
        "a.idx": ours,
        "a.idx.orig": b"first",
        "a.idx.orig1": b"second",
    }


def test_dalis_own_index_of_a_plain_tar_is_kept_as_it_is(tmp_path: Path) -> None:
    indexer: Any = pytest.importorskip("wds2idx")
    pack(tmp_path / "a.tar", plain(TRUTH))
    with indexer.IndexCreator(
        str(tmp_path / "a.tar"), str(tmp_path / "a.idx"), verbose=False
    ) as theirs:
        theirs.create_index()
    before = (tmp_path / "a.idx").read_bytes()
    assert index_shards(tmp_path, workers=1).notes == ()
    assert (tmp_path / "a.idx").read_bytes() == before


def test_the_manifest_has_the_checksums_of_the_tars(tmp_path: Path) -> None:
    for name in ("a", "b", "val"):
        pack(tmp_path / f"{name}.tar", ADOPTED["extra members"][0])
        with (tmp_path / f"{name}.tar").open("ab") as file:
            file.write(bytes(512 * len(name) * 5000))  # a long end is still an end
    index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.seed is None
    assert manifest.options == {"adopted": "webdataset tars"}
    for split in manifest.splits.values():
        for shard in split.shards:
            listed = subprocess.run(
                ["sha256sum", tmp_path / f"{shard.name}.tar", tmp_path / f"{shard.name}.idx"],
                capture_output=True,
                check=True,
                text=True,
            ).stdout.split()[::2]
            assert [shard.tar_sha256, shard.idx_sha256] == listed
            assert shard.tar_bytes == (tmp_path / f"{shard.name}.tar").stat().st_size


def test_several_workers_write_the_same_set_and_count_every_byte(tmp_path: Path) -> None:
    for n in range(7):
        pack(tmp_path / "one" / f"{n}.tar", plain(samples(5, first=5 * n)))
    (tmp_path / "one" / "val.tar").write_bytes((tmp_path / "one" / "0.tar").read_bytes())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    total_bytes = sum(tar.stat().st_size for tar in (tmp_path / "one").iterdir())
    for folder, workers in (("one", 1), ("two", 2)):
        seen: list[tuple[int, int]] = []
        index_shards(
            tmp_path / folder, workers=workers, progress=lambda *at, seen=seen: seen.append(at)
        )
        assert seen == sorted(seen)
        assert seen[-1] == (total_bytes, total_bytes)
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for folder in ("one", "two")
    ]
    assert contents[0] == contents[1]


def test_an_interrupted_job_leaves_no_manifest_and_the_next_one_succeeds(tmp_path: Path) -> None:
    for n in range(3):
        pack(tmp_path / f"{n}.tar", plain(samples(5, first=5 * n)))

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    for workers in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            index_shards(tmp_path, workers=workers, progress=stop)
        assert sorted(os.listdir(tmp_path)) == ["0.tar", "1.tar", "2.tar"]  # noqa: PTH208
    (tmp_path / "0.idx.part").write_bytes(b"of a job that was killed")
    index_shards(tmp_path, workers=1)
    assert read_by_accelssl(tmp_path) == samples(15)


def test_a_killed_worker_is_a_user_error_and_leaves_no_manifest(tmp_path: Path) -> None:
    for n in range(40):
        pack(tmp_path / f"{n}.tar", plain(samples(1, first=n)))

    def kill(done: int, total: int) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(UserError, match=r"killed .* fewer workers"):
        index_shards(tmp_path, workers=2, progress=kill)
    assert {path.suffix for path in tmp_path.iterdir()} == {".tar"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_that_cannot_be_written_is_a_user_error(tmp_path: Path, workers: int) -> None:
    for name in ("a", "b"):
        pack(tmp_path / f"{name}.tar", plain(TRUTH))
    (tmp_path / "a.idx.part").mkdir()
    with pytest.raises(UserError, match=r"a\.idx\.part cannot be read or written"):
        index_shards(tmp_path, workers=workers)


def test_fewer_than_one_worker_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="workers is 0"):
        index_shards(tmp_path, workers=0)


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link to nothing"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_called_tar_and_is_no_file_is_refused(
    tmp_path: Path, kind: str, workers: int
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    make_other(tmp_path / "b.tar", kind)
    report = index_shards(tmp_path, workers=workers)
    assert list(report.refused) == ["b.tar"]
    reason = "No such file or directory" if kind == "a link to nothing" else "it is no file"
    assert str(report.refused["b.tar"][0]) == f"it cannot be read: {reason}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link to nothing"])
def test_what_is_in_the_place_of_an_index_and_is_no_file_is_refused(
    tmp_path: Path, kind: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    make_other(tmp_path / "a.idx", kind)
    with pytest.raises(UserError, match=r"a\.idx is no file"):
        index_shards(tmp_path, workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.idx", "a.tar"]


def make_other(path: Path, kind: str) -> None:
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")


def test_a_folder_is_indexed_by_one_process_at_a_time(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    seen: list[str] = []

    def on_progress(done_bytes: int, total_bytes: int) -> None:
        with pytest.raises(UserError, match="Another process is indexing") as error:
            index_shards(tmp_path, workers=1)
        seen.append(str(error.value))

    assert index_shards(tmp_path, workers=1, progress=on_progress).is_a_set
    assert seen and str(tmp_path) in seen[0]
    assert read_by_accelssl(tmp_path) == TRUTH
    # The lock is gone with the call, whatever its end.
    with pytest.raises(UserError, match="already is a shard set"):
        index_shards(tmp_path, workers=1)
    (tmp_path / "manifest.json").unlink()
    assert index_shards(tmp_path, workers=1).is_a_set
