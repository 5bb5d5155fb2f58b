"""Fine-tuning on two ranks against one. Run as a script, this file is what torchrun starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from accelssl.errors import UserError
from accelssl.shards.shard_set import ShardSet, Split, open_shards
from accelssl.train.evaluate.finetune import finetune
from accelssl.train.evaluate.finetune_data import steps_per_epoch
from accelssl.train.evaluate.finetune_settings import finetune_settings
from accelssl.train.ranks.distributed import ALONE, Ranks, joined, read_ranks

CPU = torch.device("cpu")


def run(shards: str, out: Path | None, ranks: Ranks, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    vit = timm.create_model("test_vit", num_classes=0, img_size=64)
    given = {"epochs": 3, "batch": 8, "most_at_once": 2, "base_lr": 0.01} | options
    settings = finetune_settings("deit", **given)
    return finetune(vit, open_shards(shards), settings, CPU, out, False, ranks=ranks, workers=0)


@pytest.mark.slow
def test_two_ranks_train_and_count_as_one_does(shard_dir: Path, tmp_path: Path) -> None:
    alone = run(str(shard_dir), None, ALONE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node=2", __file__, str(shard_dir), str(tmp_path)]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["history"] == second["history"]
    assert first["images"] == 20 and (tmp_path / "finetune" / "checkpoint.pt").exists()
    for line, expected in zip(first["history"], alone["history"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert abs(line["right1"] - expected["right1"]) <= 1  # a tie, broken by rounding


def test_pieces_that_do_not_divide_among_the_ranks_are_refused(shard_dir: Path) -> None:
    with pytest.raises(UserError, match=r"4 pieces of 2, which 3 ranks .*--batch 6"):
        run(str(shard_dir), None, Ranks(rank=0, world=3))


@pytest.mark.parametrize("images", [24, 254, 255, 256, 300])
def test_the_batch_to_use_instead_is_one_that_the_ranks_share(
    images: int, monkeypatch: pytest.MonkeyPatch, shard_set: ShardSet
) -> None:
    monkeypatch.setattr(Split, "__len__", lambda split: images)

    def begin(batch: int) -> None:
        settings, ranks = finetune_settings("deit", batch=batch), Ranks(0, 2)
        finetune(torch.nn.Identity(), shard_set, settings, CPU, None, False, ranks=ranks)

    with pytest.raises(UserError, match=r"in 1 piece of 8, which 2 ranks") as refused:
        begin(8)
    if images == 24:
        assert refused.value.remedy.startswith("Start it without torchrun: 24 training pictures")
        return
    batch = int(refused.value.remedy.removeprefix("Use --batch ").removesuffix("."))
    assert images // 2 < batch <= images
    with pytest.raises(UserError, match="VisionTransformers"):  # the batch is right
        begin(batch)


@pytest.mark.parametrize(("images", "remedy"), [(1, "--data"), (2, "--batch 2"), (7, "--batch 2")])
def test_a_batch_larger_than_the_set_has_a_remedy_that_is_possible(
    images: int, remedy: str
) -> None:
    with pytest.raises(UserError) as refused:
        steps_per_epoch(images, finetune_settings("deit", batch=8))
    assert remedy in refused.value.remedy


if __name__ == "__main__":
    shards, folder = sys.argv[1], Path(sys.argv[2])
    with joined(read_ranks(), CPU) as connected:
        result = run(shards, folder / "finetune", connected)
        (folder / f"{connected.rank}.json").write_text(json.dumps(result))
