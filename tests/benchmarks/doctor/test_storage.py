"""The doctor's checks of disk and shared memory: past the cache, by the clock, and when slow."""

import os
import shutil
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accelssl.benchmarks.doctor import storage
from accelssl.benchmarks.doctor.finding import Context, Finding

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), tmp_path)


def test_a_disk_is_measured_past_the_cache(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setattr(storage, "TRIAL_BYTES", 2**24)
    finding = storage.check_disk(context)
    if finding.verdict == "absent":
        assert "cannot be read past the file cache" in finding.found
    else:
        assert "uncached" in finding.found and "/s in order" in finding.found


def test_what_was_just_read_is_cached_until_it_is_dropped(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 2**24
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
        try:
            is_told = os.preadv(file.fileno(), [bytearray(1)], size // 2, os.RWF_NOWAIT) == 1
        except OSError:
            pytest.skip("this file system does not tell")
        places = [size * k // 101 for k in range(101)]
        assert is_told and all(storage._is_cached(file.fileno(), place) for place in places)
        if storage._drop_from_cache(file.fileno()):
            # What a probe has just touched may stay for a moment.
            assert sum(storage._is_cached(file.fileno(), place) for place in places) < 50


def test_memory_that_looks_like_a_disk_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setattr(storage, "TRIAL_BYTES", 2**22)
    monkeypatch.setattr(storage, "_is_cached", lambda descriptor, place: True)
    finding = storage.check_disk(context)
    assert finding.verdict == "absent" and str(context.scratch) in finding.found


@pytest.mark.parametrize(
    ("bytes_per_s", "images_per_s", "device", "verdict"),
    [
        (60e6, 120.0, "cpu", "ok"),
        (40e6, 120.0, "cpu", "slow"),
        (60e6, 80.0, "cpu", "slow"),
        (2e9, 2900.0, "cuda", "slow"),
        (4e8, 9000.0, "cuda", "slow"),
        (2e9, 9000.0, "cuda", "ok"),
    ],
)
def test_a_slow_disk_is_slow_with_the_figures(
    monkeypatch: pytest.MonkeyPatch,
    shard_dir: Path,
    bytes_per_s: float,
    images_per_s: float,
    device: str,
    verdict: str,
) -> None:
    monkeypatch.setattr(storage, "_drop_from_cache", lambda descriptor: True)
    monkeypatch.setattr(storage, "_bytes_per_s", lambda files: bytes_per_s)
    monkeypatch.setattr(storage, "_random_reads_per_s", lambda files, sizes: images_per_s)
    context = Context(torch.device(device), Path("unused"), str(shard_dir))
    finding = storage.check_disk(context)
    assert finding.verdict == verdict and f"{images_per_s:,.0f} images/s" in finding.found
    assert str(shard_dir) in finding.found and ("NVMe" in finding.remedy) == (verdict == "slow")


def test_rates_of_the_disk_count_what_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * 2**20))
    clock = iter(range(10_000))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        monkeypatch.setattr(storage, "_MOST_S", 10_000)
        monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
        # The clock is read at the start, after each of 3 blocks of 4 MiB, and at the end.
        assert storage._bytes_per_s([descriptor]) == 10 * 2**20 / 4
        monkeypatch.setattr(storage, "_RANDOM_READS", 20)
        # At the start, before each of 20 reads, and at the end.
        assert storage._random_reads_per_s([descriptor], [10 * 2**20]) == 20 / 21
    finally:
        os.close(descriptor)


def test_a_set_that_does_not_open_is_broken_and_has_no_disk_to_measure(context: Context) -> None:
    missing = replace(context, data=str(context.scratch / "nowhere"))
    finding = storage.check_shards(missing)
    assert finding.verdict == "broken" and "nowhere" in finding.found and finding.remedy
    assert storage.check_disk(missing).verdict == "absent"


def test_a_sample_that_cannot_be_read_is_broken(shard_dir: Path, context: Context) -> None:
    copy = shutil.copytree(shard_dir, context.scratch / "copy")
    tar = next(copy.glob("train*.tar"))
    tar.write_bytes(bytes(tar.stat().st_size))
    assert storage.check_shards(replace(context, data=str(copy))).verdict == "broken"
    assert storage.check_shards(replace(context, data=str(shard_dir))).verdict == "ok"


def test_a_set_in_an_object_store_has_no_disk_to_measure(context: Context) -> None:
    finding = storage.check_disk(replace(context, data="s3://bucket/set"))
    assert finding.verdict == "absent" and "s3://bucket/set" in finding.found


@pytest.mark.parametrize(
    ("free", "rate", "verdict", "remedy"),
    [(64e6, 9e9, "slow", "--shm-size"), (2e9, 5e8, "slow", "vmstat"), (2e9, 5e9, "ok", "")],
)
def test_shared_memory_that_is_small_or_slow_is_slow(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    free: float,
    rate: float,
    verdict: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(storage, "SHARED_MEMORY", context.scratch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(4e9, 4e9 - free, free))
    monkeypatch.setattr(storage, "_shared_bytes_per_s", lambda path: rate)
    finding = storage.check_shared_memory(context)
    assert finding.verdict == verdict and remedy in finding.remedy and "4.0 GB" in finding.found


def test_shared_memory_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    monkeypatch.setattr(storage, "TRIAL_BYTES", 2**23)
    monkeypatch.setattr(storage, "SHARED_MEMORY", context.scratch)
    assert "written and read" in storage.check_shared_memory(context).found
    assert list(context.scratch.iterdir()) == []
    monkeypatch.setattr(storage, "SHARED_MEMORY", context.scratch / "nowhere")
    assert storage.check_shared_memory(context) == Finding(
        "shared memory", "absent", f"there is no {context.scratch / 'nowhere'}"
    )
