"""Two ranks that are not alike take one batch, and measure without each other.

Run as a module, this file is one of two ranks.
"""

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from accelssl.errors import UserError
from accelssl.train import command
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Stage
from accelssl.train.plan import auto_batch
from accelssl.train.plan.auto_batch import choose_batch
from accelssl.train.plan.batch_choice import Trial
from accelssl.train.plan.batch_trial import try_batch
from accelssl.train.ranks.distributed import joined, read_ranks
from tests.train.any_run import CPU, config_on
from tests.train.ranks.test_distributed import run_ranks

RATES = ({8: 10.0, 16: 20.0}, {8: 5.0, 16: 5.0})
"""Units a second of each rank: the second is not faster with more."""


def on_one_rank(shards: str, out: Path) -> None:
    placed, config = read_ranks(), config_on(Path(shards), budget=1e4)
    with joined(placed, CPU) as ranks:

        def instead(_: TrainConfig, stage: Stage, batch: int, device: torch.device) -> Trial:
            return Trial(batch, RATES[ranks.rank][batch], None, 1.0)

        with patch.object(auto_batch, "try_batch", instead):
            choice = choose_batch(config, CPU, ranks)
        told = ranks.from_all(f"rank {ranks.rank}")
        rate = None
        if ranks.rank == 1:  # it would wait for the other for ever
            with patch("accelssl.train.plan.probe_speed.ENOUGH_S", 0.0):
                rate = try_batch(config, config.schedule.stages[0], 4, CPU).units_per_s
        never = patch.object(command, "choose_batch", side_effect=AssertionError("it measures"))
        with never, pytest.raises(UserError) as refused:
            command._measure_batch(config, Path(shards), CPU, ranks)
        result = {"batch": choice.batch, "measured": choice.to_json()["measured"]}
        result |= {"refused": refused.value.what}
        torch.save(result | {"told": told, "rate": rate}, out / f"{ranks.rank}.pt")


@pytest.mark.slow
def test_ranks_agree_on_what_the_slowest_proposes_measure_alone_and_are_refused_together(
    shard_dir: Path, tmp_path: Path
) -> None:
    ended = run_ranks(str(shard_dir), tmp_path, "tests.train.plan.test_auto_batch_ranks")
    assert ended.codes == [0, 0], ended.errors
    first, second = ended.results
    assert first["batch"] == second["batch"] == 2 * 8
    assert first["measured"] == second["measured"]
    assert first["measured"][0]["proposal"]["units_per_s"] == 10 + 5
    assert first["told"] == second["told"] == ["rank 0", "rank 1"]
    assert first["rate"] is None and second["rate"] > 0
    for result in (first, second):
        assert "already holds a run or other files" in result["refused"]


if __name__ == "__main__":
    on_one_rank(sys.argv[1], Path(sys.argv[2]))
