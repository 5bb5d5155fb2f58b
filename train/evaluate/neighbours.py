"""Nearest neighbours: nn1 (reported by the paper) and knn20 (DINO's weighting).

Shapes: M bank images with labels, N queries, D feature width, C classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.loader import LoaderOptions
from accelssl.shards.shard_set import ShardSet
from accelssl.train.evaluate.features import Extract, features

KNN = 20
KNN_TEMPERATURE = 0.07
_CHUNK = 1024


def neighbours_of(
    shards: ShardSet, extracts: dict[str, Extract], options: LoaderOptions, show: bool = False
) -> dict[str, Any]:
    """Return {name: {"nn1", "knn20"}} for each of `extracts`. The bank is train, the queries are
    val."""
    refuse_unjudgeable(shards)
    bank, bank_labels = features(shards.split("train"), extracts, options, show)
    queries, labels = features(shards.split("val"), extracts, options, show)
    return {
        name: nearest_neighbours(bank[name], bank_labels, queries[name], labels)
        for name in extracts
    }


def refuse_unjudgeable(shards: ShardSet) -> None:
    """Raise UserError for a set without val split or with a single class."""
    if "val" not in shards.splits:
        raise UserError(
            f"{shards.location} has no val split to judge on.",
            "Write a set with a val folder, or evaluate on another with --data.",
        )
    if len(shards.classes) < 2:
        raise UserError(
            f"{shards.location} has one class: every answer would be right.",
            "Evaluate on a set with classes, with --data.",
        )


def nearest_neighbours(
    bank_MD: Tensor, bank_labels_M: Tensor, queries_ND: Tensor, labels_N: Tensor
) -> dict[str, float]:
    """Return accuracies in per cent, with features compared by cosine.

    nn1 gives a query the label of its nearest bank image. knn20 lets the 20 nearest vote with
    weight exp(cosine / .07) (facebookresearch/dino, eval_knn.py). The bank must not hold the
    queries.
    """
    bank = F.normalize(bank_MD.float(), dim=1)
    classes = int(torch.cat([bank_labels_M, labels_N]).max()) + 1
    right_1 = right_20 = 0
    for first in range(0, len(queries_ND), _CHUNK):
        labels = labels_N[first : first + _CHUNK]
        queries = F.normalize(queries_ND[first : first + _CHUNK].float(), dim=1)
        near = (queries @ bank.T).topk(min(KNN, len(bank)), dim=1)
        voters = bank_labels_M[near.indices]
        weights = (near.values / KNN_TEMPERATURE).exp()
        votes = torch.zeros(len(queries), classes, device=bank.device)
        votes.scatter_add_(1, voters, weights)
        right_1 += int((voters[:, 0] == labels).sum())
        right_20 += int((votes.argmax(1) == labels).sum())
    return {"nn1": 100 * right_1 / len(labels_N), "knn20": 100 * right_20 / len(labels_N)}
