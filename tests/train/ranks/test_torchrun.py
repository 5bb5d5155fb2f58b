"""Whole runs of two ranks, started by torchrun, stopped by signals and gone on with."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.config.config_file import read_config
from accelssl.train.loop import train
from accelssl.train.session import start
from tests.train.log.run_log import lines

CPU = torch.device("cpu")
RANKS = 2


def torchrun(
    *options: str, restarts: int = 0, ranks: int = RANKS, nodes: Sequence[str] = ("--standalone",)
) -> "subprocess.Popen[str]":
    """`torchrun --nproc-per-node 2 -m accelssl train ...`, one thread a rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *nodes]
    launcher += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command = [*launcher, "-m", "accelssl", "train", *options]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(command, env=quiet, stderr=subprocess.PIPE, text=True)


def pid_of_rank(rank: int, launcher: int) -> int:
    """The child of torchrun that has this RANK in its environment."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for pid in children:
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            return int(pid)
    raise AssertionError(f"torchrun has no rank {rank} among {children}")


def wait_for_steps(
    run: Path, process: "subprocess.Popen[str]", checkpoint: Path | None = None
) -> None:
    """And for a checkpoint, if one is named."""
    for _ in range(1200):
        is_there = checkpoint is None or checkpoint.exists()
        if is_there and (run / "log.jsonl").exists() and lines(run, "step"):
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("no step within a minute")


def arguments(shards: Path, run: Path, budget: str) -> list[str]:
    setting = "--model vit_tiny_patch16_224 --batch 8 --patch 48 --head-hidden 32 --lr 0.01"
    machine = "--device cpu --precision fp32 --threads 1 --no-baseline"
    places = ["--data", str(shards), "--out", str(run), "--budget", budget]
    return [*places, *setting.split(), *machine.split()]


@pytest.mark.slow
def test_torchrun_trains_as_one_process_does_through_a_signal_to_one_rank_and_a_resume(
    shard_dir: Path, tmp_path: Path
) -> None:
    """SIGTERM reaches rank 1 alone. The losses of all steps are those of an uninterrupted run."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    first = torchrun(*arguments(shard_dir, run, "60"))
    wait_for_steps(run, first)
    os.kill(pid_of_rank(1, first.pid), signal.SIGTERM)
    _, errors = first.communicate(timeout=120)
    assert first.returncode != 0 and "train/loop.py" not in errors
    assert f"Stopped; continue with: accelssl train --out {run} --resume" in errors
    (end,) = lines(run, "end")
    stopped_at = checkpoint.load(run).step
    assert (end["reason"], end["step"]) == ("interrupted", stopped_at)

    again = torchrun(*arguments(shard_dir, run, "60"), "--resume")
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert [line["step"] for line in lines(run, "resume")] == [stopped_at]
    assert errors.count("report: ") == 1

    train(start(replace(read_config(run / "config.json"), data=str(shard_dir)), whole, CPU), whole)
    wanted = {line["step"]: line for line in lines(whole, "step")}
    found = {line["step"]: line for line in lines(run, "step")}
    assert list(found) == list(wanted) and 0 < stopped_at < len(wanted)
    for step, line in found.items():
        # AdamW multiplies what float32 rounds off; the tests above compare in float64.
        near = 1e-4 if step <= 12 else 1e-2
        assert line["loss"] == pytest.approx(wanted[step]["loss"], rel=near)
        for name in ("images", "spent", "epoch", "lr"):
            assert line[name] == wanted[step][name]


@pytest.mark.slow
def test_a_run_that_torchrun_starts_anew_goes_on_from_its_checkpoint(
    shard_dir: Path, tmp_path: Path
) -> None:
    """The command has no --resume; after the signal all ranks end with a code that is not 0."""
    run = tmp_path / "run"
    process = torchrun(*arguments(shard_dir, run, "60"), restarts=1)
    wait_for_steps(run, process)
    os.kill(pid_of_rank(1, process.pid), signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    stopped, ended = lines(run, "end")
    assert (stopped["reason"], ended["reason"]) == ("interrupted", "budget")
    assert [line["step"] for line in lines(run, "resume")] == [stopped["step"]]
    assert [line["step"] for line in lines(run, "step")] == list(range(1, ended["step"] + 1))


@pytest.mark.slow
def test_two_nodes_start_anew_from_the_checkpoint_when_a_rank_of_one_is_killed(
    shard_dir: Path, tmp_path: Path
) -> None:
    """Each node has a torchrun, which find each other at a port of the first."""
    run = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"--rdzv-endpoint=localhost:{free.getsockname()[1]}"
    nodes = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job7", endpoint]
    options = [*arguments(shard_dir, run, "150"), "--keep-at", "0.02"]
    launched = [
        torchrun(*options, restarts=1, ranks=1, nodes=[*nodes, "--local-addr=127.0.0.1"])
        for _ in range(2)
    ]
    try:
        kept = run / "checkpoint-at-0.02.pt"
        wait_for_steps(run, launched[0], kept)
        for process in launched:
            with suppress(AssertionError):  # whichever has it
                os.kill(pid_of_rank(1, process.pid), signal.SIGKILL)
        errors = [process.communicate(timeout=120)[1] for process in launched]
    finally:
        for process in launched:
            process.terminate()
    assert [process.returncode for process in launched] == [0, 0], errors
    saved_at = torch.load(kept, weights_only=True)["step"]
    assert [line["step"] for line in lines(run, "resume")] == [saved_at]
    assert lines(run, "end")[-1]["reason"] == "budget"
    steps = [line["step"] for line in lines(run, "step")]
    assert sorted(set(steps)) == list(range(1, steps[-1] + 1))


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all_and_the_run_can_go_on(
    shard_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = torchrun(*arguments(shard_dir, run, "20k"))
    wait_for_steps(run, process)
    survivor = pid_of_rank(0, process.pid)
    os.kill(pid_of_rank(1, process.pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and not Path(f"/proc/{survivor}").exists()
    assert "Rank 0 lost the other ranks: connection closed by the other side." in errors
    with exclusive(run):
        assert lines(run, "step")


@pytest.mark.slow
def test_ranks_measure_their_batch_and_train_with_one_that_divides(
    shard_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = arguments(shard_dir, run, "100")
    words[words.index("--batch") + 1] = "auto"
    process = torchrun(*words)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    batch = read_config(run / "config.json").batch
    assert batch in (16, 32) and errors.count(f"--batch {batch}, {batch // 2} on each rank") == 1
