"""Evaluate a run: its network, the network before training, and raw pixels, side by side."""

import json
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.pipeline.loader import LoaderOptions
from accelssl.pipeline.shards import ShardSet, open_shards
from accelssl.train import checkpoint
from accelssl.train.config import TrainConfig, read_config
from accelssl.train.evaluate.features import (
    Extract,
    encoder_features,
    features,
    pixel_features,
)
from accelssl.train.evaluate.neighbours import nearest_neighbours
from accelssl.train.objective import build
from accelssl.train.resuming import refuse_another_network

NAME = "evaluation.json"
BATCH = 64


def evaluate_run(
    run: Path, data: str | None, device: torch.device, show: bool = True
) -> dict[str, Any]:
    """nn1 and knn20 of the run's last checkpoint, its untrained network and raw pixels.

    The bank is the train split, the queries are the val split. Writes RUN/evaluation.json and
    returns it. UserError when there is no run, checkpoint or val split.
    """
    config = read_config(run / "config.json")
    state = checkpoint.load(run)
    shards = open_shards(data or config.data)
    untrained = build(config).to(device)
    refuse_another_network(run, state, config)
    trained = build(config).to(device)
    trained.load_state_dict(state.objective)
    scores = neighbours_of(
        shards,
        {
            "trained": encoder_features(trained.evaluated),
            "untrained": encoder_features(untrained.evaluated),
            "pixels": pixel_features,
        },
        evaluation_options(config, device),
        show,
    )
    result = scores | {
        "protocol": "nn",
        "bank": len(shards.split("train")),
        "queries": len(shards.split("val")),
        "step": state.step,
        "spent": state.spent,
        "data": shards.location,
    }
    partial = run / f"{NAME}.part"
    partial.write_text(json.dumps(result, indent=1))
    partial.replace(run / NAME)
    return result


def neighbours_of(
    shards: ShardSet, extracts: dict[str, Extract], options: LoaderOptions, show: bool = False
) -> dict[str, Any]:
    """{name: {"nn1", "knn20"}} for each of `extracts`: bank train, queries val."""
    if "val" not in shards.splits:
        raise UserError(
            f"{shards.location} has no val split to take queries from.",
            "Write a set with a val folder, or evaluate on another with --data.",
        )
    bank, bank_labels = features(shards.split("train"), extracts, options, show)
    queries, labels = features(shards.split("val"), extracts, options, show)
    return {
        name: nearest_neighbours(bank[name], bank_labels, queries[name], labels)
        for name in extracts
    }


def evaluation_options(config: TrainConfig, device: torch.device) -> LoaderOptions:
    """Loader options for evaluation: float32 tokens, a batch that fits beside a training run."""
    batch = BATCH if device.type == "cpu" else max(BATCH, config.batch)
    return LoaderOptions(batch, config.seed, device, threads=config.threads)
