"""Linear classifiers on frozen features, one for each learning rate, trained side by side.

Shapes: N pictures, D feature width, H heads, C classes.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.train.evaluate.linear_presets import LinearSettings

INITIAL_STD = 0.01
NORM_EPS = 1e-6
_CHUNK = 4096


class Counts(NamedTuple):
    """For each head: correct top-1 and top-5 predictions, and if the head diverged."""

    right1: list[int]
    right5: list[int]
    diverged: list[bool]


class Probe(nn.Module):
    """Linear heads, one for each of `settings.rates`, with the same initial weights: logits_NHC.

    The initial weights are N(0, .01) drawn by `seed`, biases 0. `train_step` is one SGD step of
    each head with its own rate. Heads do not influence each other, even if one diverges.
    """

    rates_H: Tensor

    def __init__(self, width: int, classes: int, settings: LinearSettings, seed: int) -> None:
        super().__init__()
        self.settings, self.classes = settings, classes
        heads = len(settings.rates)
        self.norm = (
            nn.BatchNorm1d(width, eps=NORM_EPS, affine=False)
            if settings.normalises
            else nn.Identity()
        )
        weight_CD = torch.empty(classes, width)
        weight_CD.normal_(0, INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(weight_CD.repeat(heads, 1))
        self.bias = nn.Parameter(torch.zeros(heads * classes))
        self.register_buffer("rates_H", torch.tensor(settings.rates))
        self._optimizer: torch.optim.SGD | None = None

    def forward(self, features_ND: Tensor) -> Tensor:
        logits_NK = F.linear(self.norm(features_ND), self.weight, self.bias)
        return logits_NK.view(len(features_ND), len(self.rates_H), self.classes)

    def train_step(self, features_ND: Tensor, labels_N: Tensor, epoch: int) -> None:
        """Train every head for one step of this epoch. Peak rates are for `settings.batch`
        pictures."""
        self.train()
        if self._optimizer is None:  # created here, when the probe is on its device
            self._optimizer = torch.optim.SGD(self.parameters(), momentum=self.settings.momentum)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(epoch)
        logits_NHC = self(features_ND)
        n, heads, _ = logits_NHC.shape
        labels_K = labels_N.repeat_interleave(heads)
        losses_K = F.cross_entropy(logits_NHC.flatten(0, 1), labels_K, reduction="none")
        losses_H = losses_K.view(n, heads).mean(0)
        # With momentum and without decay, scaling a head's loss scales its learning rate. Heads
        # share no weights, so the sum trains each of them independently.
        peaks_H = self.rates_H * (self.settings.batch / 256)
        self._optimizer.zero_grad()
        (peaks_H * losses_H).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def right(self, features_ND: Tensor, labels_N: Tensor) -> Counts:
        """Count the labels that each head gets right. A head with logits that are not finite has
        diverged and gets none right."""
        self.eval()
        first_H, fifth_H, lost_H = torch.zeros(3, len(self.rates_H), dtype=torch.int64)
        parts = (torch.split(whole, _CHUNK) for whole in (features_ND, labels_N))
        for features, labels in zip(*parts, strict=True):
            logits_NHC = self(features)
            first, fifth = top1_top5(logits_NHC, labels)
            first_H += first.cpu()
            fifth_H += fifth.cpu()
            lost_H += (~logits_NHC.isfinite()).sum((0, 2)).cpu()
        diverged_H = lost_H > 0
        first_H[diverged_H] = fifth_H[diverged_H] = 0
        return Counts(first_H.tolist(), fifth_H.tolist(), diverged_H.tolist())


def top1_top5(logits_NHC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return two counts_H: the label has the largest logit, and one of the five largest."""
    best_NHK = logits_NHC.topk(min(5, logits_NHC.shape[2]), dim=2).indices
    hit_NHK = best_NHK == labels_N[:, None, None]
    return hit_NHK[..., 0].sum(0), hit_NHK.any(2).sum(0)
