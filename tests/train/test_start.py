"""What the start of a run leaves in its folder: all of it, or nothing that is in the way."""

import errno
import os
from pathlib import Path

import pytest

from accelssl.errors import UserError
from accelssl.files import write_whole
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.config.config_file import read_config
from accelssl.train.config.named_recipes import find
from accelssl.train.ranks.distributed import Ranks
from accelssl.train.run import is_started_anew
from accelssl.train.session import CONFIG, ENVIRONMENT, JOB, RECIPE, start
from tests.train.any_run import CPU, config_on


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_folder_on_a_full_disk_can_be_used_again(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    run, config = tmp_path / "run", config_on(shard_dir)
    synced: list[int] = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk, exclusive(run):
        disk.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            start(config, run, CPU)
        assert [path.name for path in run.iterdir()] == ["lock"]
    assert not run.exists()
    start(config, run, CPU).loader.close()
    assert read_config(run / CONFIG) == config
    assert find(str(run / RECIPE)).make(config.data) == config


@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_a_start_that_was_killed_is_no_run_yet_and_in_nobodys_way(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    class Killed(BaseException):
        """Nothing is cleaned up after it."""

    run, config, synced = tmp_path / "run", config_on(shard_dir), list[int]()

    def kill(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == killed_at:
            raise Killed

    with monkeypatch.context() as machine:
        machine.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            start(config, run, CPU)
    assert len(list(run.iterdir())) == killed_at and not (run / CONFIG).exists()
    assert not is_started_anew(Ranks(restarts=1), run)
    start(config, run, CPU).loader.close()
    assert {path.name for path in run.iterdir()} == {CONFIG, JOB, ENVIRONMENT, RECIPE}
    assert is_started_anew(Ranks(restarts=1), run)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / CONFIG, "before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / CONFIG, "after")
    assert (tmp_path / CONFIG).read_text() == "before"
    assert list(tmp_path.iterdir()) == [tmp_path / CONFIG]
