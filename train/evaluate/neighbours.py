"""Nearest neighbours: nn1 (the paper's reading) and knn20 (DINO's weighting).

Shapes: M bank images with labels, N queries, D feature width, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

KNN = 20
KNN_TEMPERATURE = 0.07
_CHUNK = 1024


def nearest_neighbours(
    bank_MD: Tensor, bank_labels_M: Tensor, queries_ND: Tensor, labels_N: Tensor
) -> dict[str, float]:
    """Accuracy in per cent, features compared by cosine.

    nn1 gives a query the label of its nearest bank image; knn20 lets the 20 nearest vote with
    weight exp(cosine / .07) (facebookresearch/dino, eval_knn.py). The bank must not hold the
    queries themselves.
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
