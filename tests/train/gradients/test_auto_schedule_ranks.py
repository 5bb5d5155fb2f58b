"""Two ranks of a run with --schedule auto share an estimate, and decide as one process does.

Run as a module, this file is one of the two.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.train.config.auto import BEFORE, Auto
from accelssl.train.config.config import TrainConfig
from accelssl.train.gradients import auto_schedule
from accelssl.train.gradients.analysis import RankPart
from accelssl.train.loop import train
from accelssl.train.ranks.distributed import ALONE, Ranks, joined, read_ranks
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.checkpoints.stopping import stop_before_step
from tests.train.log.run_log import lines
from tests.train.ranks.test_distributed import RANKS, run_ranks

ALGORITHMS = ("simclr", "moco")
AT = (0.0, 1e-4)
Decisions = list[dict[str, Any]]


def config_of(shards: Path, algo: str) -> TrainConfig:
    auto = {"auto": Auto(1.0, AT), "schedule": BEFORE}
    return config_on(shards, algo, size=48, batch=4, budget=46.0, **auto)


def on_one_rank(shards: Path, out: Path) -> None:
    with joined(read_ranks(), CPU) as ranks:
        for algo in ALGORITHMS:
            session = start(config_of(shards, algo), out / algo, CPU, ranks)
            stop_before_step(session, 4)
            train(session, out / algo)
            made = [decision.to_json() for decision in session.decisions]
            (out / f"{algo}-{ranks.rank}.json").write_text(json.dumps(made))
        torch.save(ALGORITHMS, out / f"{ranks.rank}.pt")


@pytest.fixture(scope="module")
def ranks(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(str(shard_dir), out, "tests.train.gradients.test_auto_schedule_ranks")
    assert ended.codes == [0] * RANKS, ended.errors
    return out


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_all_ranks_decide_the_same_and_go_on(ranks: Path, algo: str) -> None:
    first, second = (json.loads((ranks / f"{algo}-{r}.json").read_text()) for r in range(RANKS))
    assert first == second and [made["share"] for made in first] == list(AT)
    written = [
        {name: value for name, value in line.items() if name not in ("kind", "spent")}
        for line in lines(ranks / algo, "estimate")
    ]
    assert written == first
    (end,) = lines(ranks / algo, "end")
    assert end["reason"] == "interrupted" and end["step"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_figures_and_decision_of_two_ranks_are_those_of_one_process_to_rounding(
    ranks: Path, shard_dir: Path, tmp_path: Path, algo: str
) -> None:
    """Of the network at the start: later ones differ by what training rounds off. Batch norms and
    negatives are those of a sub-batch alone: nothing crosses from one rank to the other."""
    config = config_of(shard_dir, algo)
    alone = auto_schedule.decide(start(config, tmp_path / "run", CPU), 0.0).to_json()
    shared = json.loads((ranks / f"{algo}-0.json").read_text())[0]
    for name in ("p", "drop", "samples", "units", "weights", "why"):
        assert shared[name] == alone[name], name
    for found, expected in zip(shared["cells"], alone["cells"], strict=True):
        for name in ("ca_mse", "bias2", "variance"):
            scale = expected["variance"][0]
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-3 * scale), name


@pytest.mark.parametrize("world", [1, 2, 3, 8, 16, 20])
def test_each_group_is_one_ranks_and_ranks_have_about_as_many(world: int) -> None:
    parts = [list(RankPart(replace(ALONE, rank=r, world=world)).groups(16)) for r in range(world)]
    assert [group for part in parts for group in part] == list(range(16))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_nobody_else_is_asked_for_sums_of_one_process() -> None:
    sums = torch.arange(3.0)
    RankPart(Ranks()).add_up([sums])
    assert sums.tolist() == [0.0, 1.0, 2.0]


if __name__ == "__main__":
    on_one_rank(Path(sys.argv[1]), Path(sys.argv[2]))
