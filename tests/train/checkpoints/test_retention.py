"""Checkpoints that stay: the latest few, and those at given shares of the budget."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.train.checkpoints import checkpoint, retention
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import constant
from accelssl.train.loop import train
from accelssl.train.session import CONFIG, resume, start
from tests import small_vit

CPU = torch.device("cpu")
STEP_COST = 8 * 6 * 12 / 196


@pytest.fixture
def config(shard_dir: Path) -> TrainConfig:
    """Eight steps."""
    return TrainConfig(
        algo="simclr",
        model=small_vit.NAME,
        data=str(shard_dir),
        budget=7.5 * STEP_COST,
        schedule=constant(Compression(48, 0.5)),
        batch=8,
        base_lr=0.01,
        head_hidden=16,
        head_out=8,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def kept(run: Path) -> dict[str, int]:
    """The steps of the checkpoints in a run, by name."""
    return {
        path.name: torch.load(path, weights_only=True)["step"]
        for path in run.glob("checkpoint*")
        if path.name != checkpoint.NAME
    }


@pytest.mark.parametrize(
    ("text", "shares"),
    [("0,.25,1", (0.0, 0.25, 1.0)), ("1, 0.5,1", (0.5, 1.0)), ("0.3", (0.3,))],
)
def test_shares_are_read_ascending_and_once(text: str, shares: tuple[float, ...]) -> None:
    assert retention.read_shares(text) == shares


@pytest.mark.parametrize("text", ["", "half", "0,1.5", "-0.1", "nan", "50", ".3333333,.33333334"])
def test_what_is_no_list_of_shares_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--keep-at"):
        retention.read_shares(text)


def test_only_the_latest_numbered_ones_stay_beside_those_at_shares(
    config: TrainConfig, run: Path
) -> None:
    session = start(replace(config, keep_latest=2, keep_at=(0.0,)), run, CPU)
    for step in (0, 1, 9, 10, 11):
        session.step = step
        session.save(run)
    assert kept(run) == {"checkpoint-10.pt": 10, "checkpoint-11.pt": 11, "checkpoint-at-0.pt": 0}
    assert (run / checkpoint.NAME).samefile(run / "checkpoint-11.pt")
    (run / "checkpoint-old.pt").touch()
    session.config = replace(config, keep_latest=0)
    session.save(run)
    assert len(list(run.glob("checkpoint-*"))) == 4


def test_a_file_system_without_links_gets_copies(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    start(replace(config, keep_latest=1), run, CPU).save(run)
    assert kept(run) == {"checkpoint-0.pt": 0}
    assert not list(run.glob("*.part"))


def test_shares_are_kept_at_the_first_step_that_reaches_them_also_over_a_resume(
    config: TrainConfig, run: Path
) -> None:
    """Shares 0.3 and 0.35 are reached by one step, 0.5 and 1 by none."""
    shares = (0.0, 0.25, 0.3, 0.35, 0.5, 1.0)
    session = start(replace(config, keep_at=shares), run, CPU)
    session.save(run)
    session.budget.spent, session.step = 0.2 * config.budget, 100  # as left by a first part
    session.save(run)
    resumed = resume(read_config(run / CONFIG), run, CPU)
    assert resumed.config.keep_at == shares
    for share, step in ((0.24, 101), (0.26, 102), (0.4, 103), (0.45, 104)):
        resumed.budget.spent, resumed.step = share * config.budget, step
        if resumed.shares_to_keep:
            resumed.save(run)
    assert kept(run) == {
        "checkpoint-at-0.pt": 0,
        "checkpoint-at-0.25.pt": 102,
        "checkpoint-at-0.3.pt": 103,
        "checkpoint-at-0.35.pt": 103,
    }
    assert checkpoint.load(run).step == 103


def test_a_run_leaves_those_that_were_asked_for(config: TrainConfig, run: Path) -> None:
    session = start(replace(config, keep_latest=1, keep_at=(0.0, 0.25, 0.5, 1.0)), run, CPU)
    session.save(run)
    assert train(session, run) == 0
    assert kept(run) == {
        "checkpoint-8.pt": 8,
        "checkpoint-at-0.pt": 0,
        "checkpoint-at-0.25.pt": 2,
        "checkpoint-at-0.5.pt": 4,
        "checkpoint-at-1.pt": 8,
    }
    assert (run / "checkpoint-at-1.pt").samefile(run / checkpoint.NAME)
