"""A method that one file adds is a method like the others, for every command."""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import timm

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Batch, Loader
from accelssl.train.config.config_file import read_config
from accelssl.train.config.recipes import usual
from accelssl.train.config.schedule import constant
from accelssl.train.methods import METHODS
from tests import small_vit
from tests.train.checkpoints.stopping import terminate
from tests.train.log.run_log import lines, losses

TOY = "toy_byol"
STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Import the file, which registers its method, for the tests of this file alone."""
    importlib.import_module(f"tests.train.methods.{TOY}")
    yield
    del METHODS[TOY]


def accelssl(*words: object) -> int:
    """Run a command in this process and return its exit code."""
    argv, sys.argv = sys.argv, ["accelssl", *map(str, words)]
    try:
        cli.main()
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.argv = argv
    return 0


def begin(shard_dir: Path, run: Path) -> int:
    tiny = f"--model {small_vit.NAME} --batch 8 --patch 48 --drop 0.5 --head-hidden 16"
    where = "--device cpu --threads 1 --no-baseline"
    options = f"--algo {TOY} --momentum 0.9 --budget 20 {tiny} {where}".split()
    return accelssl("train", "--data", shard_dir, "--out", run, *options)


@pytest.fixture(scope="module")
def whole(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run without interruption."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert begin(shard_dir, run) == 0
    return run


def test_it_trains_at_the_cost_and_with_the_settings_of_its_file(whole: Path) -> None:
    steps = lines(whole, "step")
    assert len(steps) == STEPS
    assert steps[0]["sample_cost"] == pytest.approx((3 * 12 + 25) / 196)
    assert steps[0]["image_flops"] > 0 and all(-1 <= step["loss"] <= 1 for step in steps)
    config = read_config(whole / "config.json")
    assert (config.algo, config.base_lr, config.momentum) == (TOY, 1e-3, 0.9)


def test_a_resumed_run_has_the_losses_of_the_uninterrupted_one(
    shard_dir: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, original, calls = tmp_path / "run", Loader.next, 0

    def next_and_stop(
        loader: Loader,
        compressions: Sequence[Compression],
        then: Sequence[Compression] | None = None,
    ) -> Batch:
        nonlocal calls
        calls += 1
        if calls == STEPS // 2:
            terminate()
        return original(loader, compressions, then)

    with monkeypatch.context() as patched:
        patched.setattr(Loader, "next", next_and_stop)
        assert begin(shard_dir, run) != 0
    assert 0 < len(losses(run)) < STEPS
    assert accelssl("train", "--out", run, "--resume", "--device", "cpu") == 0
    assert losses(run) == losses(whole)


def test_it_is_evaluated_reported_and_exported(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accelssl("evaluate", whole, "--device", "cpu", "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert accelssl("report", whole) == 0
    assert "Toy BYOL" in (whole / "report.html").read_text()
    file = tmp_path / "vit.safetensors"
    assert accelssl("export", whole, file) == 0
    timm.create_model(small_vit.NAME, checkpoint_path=str(file), num_classes=0)


def test_messages_name_it() -> None:
    asked: Any = ("vit_tiny_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)))
    with pytest.raises(UserError, match=f"simclr, moco, dino, {TOY}"):
        usual("byol", *asked)
    with pytest.raises(UserError, match=f"--symmetric has no effect with {TOY}"):
        usual(TOY, *asked, symmetric=True)
    with pytest.raises(UserError, match="--momentum 2"):
        usual(TOY, *asked, momentum=2.0)
