"""A sharding job that is killed, interrupted, refused or repeated: nothing is lost or left half."""

import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards
from accelssl.shards.write.shard_imagenet import shard_images

SAMPLES_PER_SHARD = 7  # makes 6 shards of the 40 training pictures and 3 of the 20 for validation


@pytest.fixture(scope="module")
def folder(shard_dir: Path) -> Path:
    return shard_dir.parent / "pictures"


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "set"
    shard_images(folder, out, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    return out


@pytest.fixture(scope="module")
def undisturbed(whole: Path) -> dict[str, str]:
    return hashes(whole)


def hashes(out: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}


def journal(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "unfinished.json").read_text())
    return document


JOB = """
import os, resource, signal, sys
from pathlib import Path
from accelssl.errors import UserError
from accelssl.shards.write.shard_imagenet import shard_images

def progress(done, total):
    if done >= int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[5]), resource.RLIM_INFINITY))
    try:
        shard_images(Path(sys.argv[1]), Path(sys.argv[2]), samples_per_shard=int(sys.argv[6]),
                     workers=int(sys.argv[3]), progress=progress)
    except UserError as error:
        sys.exit(f"refused: {error.what}")
"""


def job_command(
    tmp_path: Path, source: Path, workers: int, kill_at: int = 10**9, largest_file: int = -1
) -> list[str]:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    numbers = (workers, kill_at, largest_file, SAMPLES_PER_SHARD)
    return [str(word) for word in (sys.executable, script, source, tmp_path / "out", *numbers)]


@pytest.mark.parametrize(
    ("workers", "kill_at", "published"), [(1, 1, 0), (1, 25, 3), (1, 60, 8), (2, 9, None)]
)
def test_a_killed_job_leaves_no_set_and_the_next_call_continues_it(
    folder: Path,
    undisturbed: dict[str, str],
    tmp_path: Path,
    workers: int,
    kill_at: int,
    published: int | None,
) -> None:
    out = tmp_path / "out"
    # Its workers hold the pipe that this waits for: they end too.
    command = job_command(tmp_path, folder, workers, kill_at)
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="did not finish"):
        open_shards(out)
    kept = {
        e["entry"]["name"]: (out / f"{e['entry']['name']}.tar") for e in journal(out)["records"]
    }
    assert published is None or len(kept) == published
    written_at = {name: path.stat().st_mtime_ns for name, path in kept.items()}
    (out / "train-000099.tar").write_bytes(b"of an earlier call, before the kill")
    report = shard_images(folder, out, samples_per_shard=SAMPLES_PER_SHARD, workers=2)
    assert hashes(out) == undisturbed
    assert written_at == {name: path.stat().st_mtime_ns for name, path in kept.items()}
    assert report.images == 60
    assert report.taken_over == sum(e["samples"] for e in entries(out)[: len(kept)])


def entries(out: Path) -> list[dict[str, Any]]:
    splits = json.loads((out / "manifest.json").read_text())["splits"]
    return [*splits["train"]["shards"], *splits["val"]["shards"]]


def test_kills_at_random_moments_change_nothing(
    folder: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(0)
    for _ in range(5):
        with subprocess.Popen(
            job_command(tmp_path, folder, workers=2), start_new_session=True
        ) as job:
            time.sleep(chance.uniform(0.2, 2.0))
            os.killpg(job.pid, signal.SIGKILL)
        if (tmp_path / "out" / "manifest.json").exists():
            break
    if not (tmp_path / "out" / "manifest.json").exists():
        subprocess.run(job_command(tmp_path, folder, workers=2), check=True)
    assert hashes(tmp_path / "out") == undisturbed


def stop_after(images: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= images:
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def interrupted(folder: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard_images(
            folder,
            out,
            samples_per_shard=SAMPLES_PER_SHARD,
            workers=1,
            progress=stop_after(2 * SAMPLES_PER_SHARD + 1),
        )
    assert len(journal(out)["records"]) == 2
    return out


def test_a_kill_after_the_manifest_was_written_is_continued_too(
    folder: Path, undisturbed: dict[str, str], interrupted: Path
) -> None:
    before = (interrupted / "unfinished.json").read_bytes()
    shard_images(folder, interrupted, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    (interrupted / "unfinished.json").write_bytes(before)
    shard_images(folder, interrupted, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    assert hashes(interrupted) == undisturbed


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 512)])
def test_a_published_shard_that_is_no_longer_whole_is_written_again(
    folder: Path, undisturbed: dict[str, str], interrupted: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(interrupted / "train-000001.tar")
    report = shard_images(folder, interrupted, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    assert report.taken_over == SAMPLES_PER_SHARD
    assert hashes(interrupted) == undisturbed


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 5}, "seed 0, now 5"),
        ({"samples_per_shard": 8}, "samples_per_shard_train 7, now 8"),
        ({"max_side": 100}, "max_side not set, now 100"),
    ],
)
def test_a_job_with_other_options_does_not_touch_an_unfinished_set(
    folder: Path, interrupted: Path, options: dict[str, int], named: str
) -> None:
    before = hashes(interrupted)
    with pytest.raises(UserError, match=named):
        shard_images(
            folder,
            interrupted,
            workers=1,
            **({"samples_per_shard": SAMPLES_PER_SHARD} | options),  # type: ignore[arg-type]
        )
    assert hashes(interrupted) == before


def test_a_job_with_another_source_does_not_touch_an_unfinished_set(
    folder: Path, interrupted: Path, tmp_path: Path
) -> None:
    before = hashes(interrupted)
    shutil.copytree(folder, tmp_path / "other")
    for path in sorted((tmp_path / "other" / "train").rglob("*.jpg")):
        path.rename(path.with_stem(path.stem + "_renamed"))
    with pytest.raises(UserError, match="added, removed or renamed"):
        shard_images(
            tmp_path / "other", interrupted, samples_per_shard=SAMPLES_PER_SHARD, workers=1
        )
    assert hashes(interrupted) == before


@pytest.mark.parametrize("text", [b"", b"{}", b'{"options": {}, "records": [1]}', b"\xff"])
def test_a_journal_of_something_else_is_refused(folder: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "unfinished.json").write_bytes(text)
    with pytest.raises(UserError, match=r"unfinished\.json is not the journal"):
        shard_images(folder, tmp_path, workers=1)
    assert (tmp_path / "unfinished.json").read_bytes() == text


def test_two_jobs_never_write_into_one_folder(folder: Path, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="Another process is writing"):
            shard_images(folder, tmp_path, workers=1)
    finally:
        os.close(descriptor)
    assert not list(tmp_path.iterdir())
    shard_images(folder, tmp_path, workers=1)


def test_a_refused_source_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        shard_images(tmp_path / "nowhere", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_refuses_more_is_a_clear_error_and_what_is_done_is_kept(
    folder: Path, whole: Path, tmp_path: Path, workers: int
) -> None:
    out, sizes = tmp_path / "out", [entry["tar_bytes"] for entry in entries(whole)]
    # A limit on the size of files fails in write() as a full disk does.
    limit = next(size for size in sizes[1:] if size > sizes[0]) - 512
    command = job_command(tmp_path, folder, workers, largest_file=limit)
    job = subprocess.run(command, capture_output=True, text=True)
    assert job.returncode == 1
    assert job.stderr.startswith(f"refused: {out} cannot be written: ")
    assert len(job.stderr.splitlines()) == 1
    assert not (out / "manifest.json").exists()
    report = shard_images(folder, out, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    assert report.taken_over >= (SAMPLES_PER_SHARD if workers == 1 else 0)
    assert hashes(out) == hashes(whole)


def test_a_worker_that_is_killed_is_a_clear_error(folder: Path, tmp_path: Path) -> None:
    def kill_one(done: int, total: int) -> None:
        for process in multiprocessing.active_children()[:1]:
            process.kill()

    with pytest.raises(UserError, match="worker process was killed"):
        shard_images(folder, tmp_path / "out", samples_per_shard=2, workers=2, progress=kill_one)


def test_an_interrupt_ends_the_workers(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        shard_images(
            folder, tmp_path / "out", samples_per_shard=2, workers=2, progress=stop_after(1)
        )
    assert not multiprocessing.active_children()


def test_an_existing_set_is_never_written_to(folder: Path, tmp_path: Path) -> None:
    shard_images(folder, tmp_path / "set", workers=1)
    before = hashes(tmp_path / "set")
    with pytest.raises(UserError, match="already holds a shard set"):
        shard_images(folder, tmp_path / "set", workers=1)
    assert hashes(tmp_path / "set") == before


@pytest.mark.parametrize("name", ["thesis.txt", "train-000000.tar"])
def test_files_of_others_are_never_touched(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(UserError, match=name):
        shard_images(folder, tmp_path, workers=1)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"precious"]


def test_an_out_that_cannot_be_made_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        shard_images(folder, tmp_path / "file", workers=1)
    with pytest.raises(UserError, match="cannot be written"):
        shard_images(folder, tmp_path / "file" / "out", workers=1)


def test_a_source_that_goes_away_ends_the_job_and_is_continued_when_it_is_back(
    folder: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    source, away, out = tmp_path / "in", tmp_path / "away", tmp_path / "out"
    shutil.copytree(folder, source)

    def unplug(done: int, total: int) -> None:
        if done == 2 * SAMPLES_PER_SHARD and source.exists():
            source.rename(away)

    with pytest.raises(UserError, match="source became unreadable"):
        shard_images(source, out, samples_per_shard=SAMPLES_PER_SHARD, workers=1, progress=unplug)
    assert all(not record["quarantined"] for record in journal(out)["records"])
    away.rename(source)
    shard_images(source, out, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    assert hashes(out) == undisturbed


def test_a_call_that_was_stopped_at_its_first_write_is_no_obstacle(
    folder: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "unfinished.json.part").write_bytes(b'{"options')
    shard_images(folder, out, samples_per_shard=SAMPLES_PER_SHARD, workers=1)
    assert hashes(out) == undisturbed


def test_want_of_memory_ends_the_job_but_a_file_that_asks_for_too_much_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelssl.shards.write import shard_writer

    def hungry(data: bytes, max_side: int | None, short_side: int | None) -> object:
        raise MemoryError

    monkeypatch.setattr(shard_writer, "check_image", hungry)
    monkeypatch.setattr(shard_writer, "_MOST_BYTES_OF_A_PICTURE", 1_000_000)  # is written: slow
    with pytest.raises(UserError, match="None of the 40 images"):
        shard_images(folder, tmp_path / "a", workers=1)
    monkeypatch.setattr(shard_writer, "_memory_is_short", lambda: True)
    with pytest.raises(UserError, match="not enough memory"):
        shard_images(folder, tmp_path / "b", workers=1)


def test_a_class_that_loses_all_its_images_is_told(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "in")
    for path in (tmp_path / "in" / "train" / "class2").iterdir():
        path.write_bytes(b"not a picture")
    report = shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    assert "No image of train is left of 1 class: class2" in str(report)
