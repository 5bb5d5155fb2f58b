"""A checkpoint that cannot be written, or should not be."""

import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.draws.order import Position
from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.checkpoint import Checkpoint
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.checkpoints.damage import (
    cut_off,
    empty,
    flip_a_bit,
    overwrite_the_beginning,
    overwrite_the_middle,
)

Usage = namedtuple("Usage", "total used free")


def state() -> Checkpoint:
    return Checkpoint(1, 1.0, 1.0, 1, Position(), "digest", {"w": torch.zeros(3)}, {})


def fail(*_: Any) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0\nmore")


@pytest.mark.parametrize(
    ("free_bytes", "reason"), [(0, r"\(no space left\)"), (2**40, "unexpected pos 64 vs 0")]
)
def test_a_full_disk_is_said_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, reason: str
) -> None:
    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(2**40, 2**40, free_bytes))
    with pytest.raises(UserError, match=reason) as raised:
        checkpoint.save(tmp_path, state())
    assert "intact" not in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_before_it_is_left_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path, state())
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(UserError) as raised:
        checkpoint.save(tmp_path, state())
    assert "the previous checkpoint is intact" in raised.value.remedy
    assert checkpoint.load(tmp_path).digest == "digest"


LOST = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("weight", "objective.w"),
        ("buffer", "objective.running"),
        ("moment", "optimizer.state.0.exp_avg"),
    ],
)
def test_numbers_that_are_lost_are_not_saved_over_good_ones(
    tmp_path: Path, where: str, named: str, device: str, lost: float
) -> None:
    checkpoint.save(tmp_path, state())
    before = (tmp_path / checkpoint.NAME).read_bytes()
    tensors = {
        "weight": torch.full((70_000,), 3e38, device=device),  # large is not lost
        "buffer": torch.zeros(3, device=device, dtype=torch.bfloat16),
        "moment": torch.zeros((), device=device, dtype=torch.float64),
    }
    later = Checkpoint(
        *(9, 1.0, 1.0, 1, Position(), "digest"),
        {"w": tensors["weight"], "running": tensors["buffer"], "count": torch.tensor(3)},
        {"state": {0: {"exp_avg": tensors["moment"]}}, "param_groups": [{"lr": torch.tensor(1.0)}]},
    )
    tensors[where].view(-1)[-1] = lost
    with pytest.raises(UserError) as raised:
        checkpoint.save(tmp_path, later)
    assert raised.value.what == f"After step 9 not all of {named} is finite."
    assert "--lr" in raised.value.remedy and "which is of step 1." in raised.value.remedy
    assert (tmp_path / checkpoint.NAME).read_bytes() == before
    tensors[where].view(-1)[-1] = 0
    checkpoint.save(tmp_path, later)
    assert checkpoint.load(tmp_path).step == 9


def test_the_first_checkpoint_with_lost_numbers_leaves_none(tmp_path: Path) -> None:
    lost = state()
    lost.objective["w"][0] = float("nan")
    with pytest.raises(UserError) as raised:
        checkpoint.save(tmp_path, lost)
    assert "--resume" not in raised.value.remedy and list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from accelssl.train.checkpoints import checkpoint

run, place = Path(sys.argv[1]), sys.argv[2]
later = checkpoint.load(run)
later.step = 2
later.objective["w"] = torch.ones(100_000)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def die_half_way(state, file):
    file.write(b"x" * 5000)
    file.flush()
    die()

if place == "writing":
    torch.save = die_half_way
elif place == "written":
    os.fsync = die
elif place == "linking":
    Path.hardlink_to = die
elif place == "linked":
    checkpoint._link = lambda file, name, link=checkpoint._link: (link(file, name), die())
checkpoint.save(run, later, ["checkpoint-2.pt"])
"""


@pytest.mark.parametrize("place", ["writing", "written", "linking", "linked"])
def test_killed_while_writing_the_checkpoint_before_can_be_loaded_and_the_next_written(
    tmp_path: Path, place: str
) -> None:
    checkpoint.save(tmp_path, state(), ["checkpoint-1.pt"])
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), place])
    assert killed.returncode == -signal.SIGKILL
    found = checkpoint.load(tmp_path)
    assert found.step == 1 and torch.equal(found.objective["w"], torch.zeros(3))
    assert torch.load(tmp_path / "checkpoint-1.pt", weights_only=True)["step"] == 1
    found.step = 3
    checkpoint.save(tmp_path, found, ["checkpoint-2.pt"])
    assert checkpoint.load(tmp_path).step == 3
    assert torch.load(tmp_path / "checkpoint-2.pt", weights_only=True)["step"] == 3
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("part", ["data/0", "data.pkl"])
def test_a_checkpoint_that_is_damaged_is_refused_and_one_without_sums_is_not(
    tmp_path: Path, part: str
) -> None:
    path = tmp_path / checkpoint.NAME
    checkpoint.save(tmp_path, state())
    flip_a_bit(path, part)
    with pytest.raises(UserError, match=rf"checkpoint\.pt is damaged \(.*{part}\)") as refused:
        checkpoint.load(tmp_path)
    assert "Put back a copy" in refused.value.remedy
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"is damaged \(its end is missing"):
        checkpoint.load(tmp_path)
    torch.serialization.set_crc32_options(False)
    try:
        checkpoint.save(tmp_path, state())
    finally:
        torch.serialization.set_crc32_options(True)
    assert checkpoint.load(tmp_path).step == 1


@pytest.fixture(scope="module")
def unfinished(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at its beginning, with a checkpoint."""
    run = tmp_path_factory.mktemp("unfinished") / "run"
    start(config_on(shard_dir, size=96), run, CPU).save(run)
    return run


@pytest.mark.parametrize("damage", [cut_off, empty, overwrite_the_middle, overwrite_the_beginning])
def test_whoever_meets_a_damaged_checkpoint_says_the_same_of_it(
    unfinished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    run = shutil.copytree(unfinished, tmp_path / "run")
    damage(run / checkpoint.NAME)
    said = set()
    for words in (f"train --resume --device cpu --out {run}", f"evaluate {run} --device cpu"):
        monkeypatch.setattr(sys, "argv", ["accelssl", *words.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        said.add(" ".join(capsys.readouterr().err.split()))
    (error,) = said
    assert "checkpoint.pt is damaged (" in error and "an earlier checkpoint of the run" in error
    assert "of this version" not in error


def test_of_a_checkpoint_that_is_whole_but_of_another_version_nobody_says_that_it_is_damaged(
    tmp_path: Path,
) -> None:
    torch.save({"format": 99}, tmp_path / checkpoint.NAME)
    for at_a_glance in (True, False):
        with pytest.raises(UserError, match=r"is not a checkpoint of this version \(format 99"):
            checkpoint.load(tmp_path, at_a_glance=at_a_glance)


def test_a_damaged_checkpoint_that_was_kept_for_a_share_is_named_and_can_be_left_out(
    tmp_path: Path,
) -> None:
    checkpoint.save(tmp_path, state(), ["checkpoint-at-0.5.pt"])
    cut_off(tmp_path / "checkpoint-at-0.5.pt")
    with pytest.raises(UserError, match=r"at-0\.5\.pt is damaged .*or remove it") as refused:
        checkpoint.load(tmp_path, at_a_glance=True, name="checkpoint-at-0.5.pt")
    assert checkpoint.NAME not in refused.value.remedy
