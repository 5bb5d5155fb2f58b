"""What fails on one of two ranks stops both, and both say what it was.

Run as a script, this file is one of them; what fails is its first argument.
"""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from accelssl import cli
from accelssl.errors import UserError
from accelssl.train import loop
from accelssl.train import run as running
from accelssl.train.checkpoints import checkpoint
from accelssl.train.session import Session
from tests.train.log.run_log import lines

RANKS = 2


def spoil(session: Session, what: str) -> None:
    """Let something fail on rank 1 in the third step, or rank 0's disk be full after the first."""
    original, forward, calls = session.loader.next, session.objective.forward, 0

    def third_fails(*compressions: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and what == "pictures":
            raise UserError("Image 17 is cut off.", "Mend it.")
        if calls == 3 and what == "bug":
            raise ZeroDivisionError("division by zero")
        return original(*compressions)

    def third_is_lost(*views: Any) -> Tensor:
        loss: Tensor = forward(*views)
        return loss * float("nan") if calls == 3 and what == "loss" else loss

    def disk_is_full(run: Path) -> None:
        raise UserError(f"The checkpoint could not be written to {run}.", "Free space there.")

    if session.ranks.is_main and what == "disk":
        loop.CHECKPOINT_S = 0.0
        session.save = disk_is_full  # type: ignore[method-assign]
    if session.ranks.rank == 1:
        session.loader.next = third_fails  # type: ignore[method-assign, assignment]
        session.objective.forward = third_is_lost


def main(what: str, *words: str) -> None:
    def spoilt(session: Session, run: Path, *watchers: Any) -> int:
        spoil(session, what)
        return loop.train(session, run, *watchers)

    vars(running)["train"] = spoilt
    sys.argv = ["accelssl", "train", *words]
    cli.main()


@dataclass(frozen=True)
class Ended:
    codes: list[int]
    errors: list[str]


def two_ranks(what: str, *words: str) -> Ended:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # This file imports its neighbours.
    shared["PYTHONPATH"] = str(Path(__file__).parents[3])
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, what, *words],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return Ended([process.returncode for process in processes], errors)


def arguments(shards: Path, run: Path) -> list[str]:
    setting = "--model vit_tiny_patch16_224 --batch 8 --patch 48 --head-hidden 32 --budget 100k"
    machine = "--device cpu --precision fp32 --threads 1 --no-baseline --keep-at 0"
    return ["--data", str(shards), "--out", str(run), *setting.split(), *machine.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss", "The loss of step 3 is nan on rank 1 of 2 (p48 d0.5, learning rate "),
        ("pictures", "Image 17 is cut off."),
        ("bug", "ZeroDivisionError: division by zero"),
        ("disk", "The checkpoint could not be written to "),
    ],
)
def test_what_fails_on_one_rank_stops_both_with_its_message_and_a_good_checkpoint(
    what: str, said: str, shard_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = two_ranks(what, *arguments(shard_dir, run))
    assert 0 not in ended.codes, ended.errors
    assert all(said in error for error in ended.errors), ended.errors
    state = checkpoint.load(run)
    assert state.step == 0 and (run / "checkpoint-at-0.pt").exists()
    assert all(value.isfinite().all() for value in state.objective.values())
    if what == "loss":
        assert [error.count("Traceback") for error in ended.errors] == [0, 0]
        assert all("which is of step 0." in error for error in ended.errors)
        assert [line["step"] for line in lines(run, "step")][:3] == [1, 2, 3]


if __name__ == "__main__":
    main(*sys.argv[1:])
