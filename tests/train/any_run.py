"""A small run of any method, for tests of what a run leaves."""

from pathlib import Path
from typing import Any

import torch

from accelssl.pipeline.compression import Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import constant
from tests import small_vit

CPU = torch.device("cpu")


def config_on(shard_dir: Path, algo: str = "simclr", **options: Any) -> TrainConfig:
    """Of a tiny model with a tiny head, for a few steps; at p48 d0.5 unless options say another."""
    small: dict[str, Any] = {"model": small_vit.NAME, "budget": 20.0, "batch": 8}
    small |= {"head_hidden": 16, "head_out": 8, "schedule": constant(Compression(48, 0.5))}
    return TrainConfig(algo=algo, data=str(shard_dir), **(small | options))
