"""Killed in step 6 and gone on with from step 5, a run is the uninterrupted one to the bit.

Run as a script, this file is a process that trains: start or resume, its folder, the device, and
the step in which it is killed, 0 for none.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.pipeline.compression import Compression
from accelssl.train import loop
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.methods import METHODS
from accelssl.train.session import CONFIG, Session, resume, start

STEPS, LAST_SAVED = 10, 5
OF_DINO: dict[str, Any] = {"prototypes": 48, "n_local": 2, "local_size": 32, "frozen_last": 0.25}


def config(algo: str, data: Path) -> TrainConfig:
    """Ten steps, seven of them in the first stage; after five an epoch ends."""
    settings: dict[str, Any] = dict(OF_DINO) if algo == "dino" else {}
    settings |= {"algo": algo, "model": "vit_tiny_patch16_224", "data": str(data), "batch": 8}
    settings |= {"head_hidden": 32, "head_out": 16, "base_lr": 0.01, "seed": 5}
    first, second = Compression(48, 0.5), Compression(40, 0.5)
    any_run = TrainConfig(budget=1e6, schedule=constant(first), **settings)
    cheap, dear = (8 * any_run.sample_cost(Stage(1.0, c)) for c in (first, second))
    budget = 7 * cheap + 2.5 * dear
    schedule = Schedule((Stage(6.5 * cheap / budget, first), Stage(1.0, second)))
    return replace(any_run, budget=budget, schedule=schedule)


def train(session: Session, run: Path, killed_in: int = 0) -> None:
    """Train to the end with a checkpoint after every step, or be killed in one."""
    original = session.loader.next

    def next_or_die(*compressions: Any) -> Any:
        if session.step + 1 == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*compressions)

    session.loader.next = next_or_die  # type: ignore[method-assign, assignment]
    loop.CHECKPOINT_S = 0.0
    loop.train(session, run)


def process(how: str, run: Path, device: str, killed_in: int = 0) -> int:
    """Runs this file; its exit code."""
    command = [sys.executable, __file__, how, str(run), device, str(killed_in)]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return subprocess.run(command, env=environment, timeout=300).returncode


def main(how: str, folder: str, device: str, killed_in: str) -> None:
    run, where = Path(folder), torch.device(device)
    if where.type == "cuda":
        torch.use_deterministic_algorithms(True)
    if how == "start":
        session = start(read_config(run.with_suffix(".json")), run, where)
    else:
        session = resume(read_config(run / CONFIG), run, where)
    train(session, run, int(killed_in))


def losses(run: Path) -> list[float]:
    """By step; what the killed process logged of steps that were made again does not count."""
    written = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found = {line["step"]: line["loss"] for line in written if line["kind"] == "step"}
    return [found[step] for step in sorted(found)]


def prepare(algo: str, data: Path, run: Path) -> None:
    run.with_suffix(".json").write_text(json.dumps(config(algo, data).to_json()))


def assert_same(run: Path, whole: Path) -> None:
    assert losses(run) == losses(whole) and len(losses(whole)) == STEPS
    ours, theirs = (checkpoint.load(folder) for folder in (run, whole))
    assert (ours.step, ours.spent, ours.position) == (theirs.step, theirs.spent, theirs.position)
    assert ours.objective.keys() == theirs.objective.keys()
    for name, value in theirs.objective.items():
        assert torch.equal(ours.objective[name], value), name
    for number, state in theirs.optimizer["state"].items():
        for name, value in state.items():
            assert torch.equal(ours.optimizer["state"][number][name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("algo", METHODS)
def test_a_run_that_was_killed_and_resumed_is_the_uninterrupted_one_to_the_bit(
    algo: str, shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)
    parted, whole, cpu = tmp_path / "parted", tmp_path / "whole", torch.device("cpu")
    prepare(algo, shard_dir, parted)
    assert process("start", parted, "cpu", killed_in=LAST_SAVED + 1) == -signal.SIGKILL
    assert checkpoint.load(parted).step == LAST_SAVED
    train(resume(read_config(parted / CONFIG), parted, cpu), parted)
    train(start(config(algo, shard_dir), whole, cpu), whole)
    assert_same(parted, whole)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("algo", ["simclr", "moco"])
def test_with_deterministic_kernels_so_it_is_on_a_gpu_in_cuda_graphs(
    algo: str, shard_dir: Path, tmp_path: Path
) -> None:
    parted, whole = tmp_path / "parted", tmp_path / "whole"
    for run in (parted, whole):
        prepare(algo, shard_dir, run)
    assert process("start", whole, "cuda") == 0
    assert process("start", parted, "cuda", killed_in=LAST_SAVED + 1) == -signal.SIGKILL
    assert checkpoint.load(parted).step == LAST_SAVED
    assert process("resume", parted, "cuda") == 0
    assert_same(parted, whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
