"""DINO: a query (student) predicts the prototypes that a key encoder (teacher) assigns.

The key encoder is a moving average and sees other crops of the same image. Small crops are queries
too.

Shapes: N images on this rank; of each, G large crops that are queries, as many that are keys, and
S = G + small crops; D width, K prototypes.
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.ema import MovingAverage
from accelssl.model.gather import gather_detached
from accelssl.model.heads import PrototypeHead
from accelssl.model.objective import Objective
from accelssl.model.tokens import Tokens
from accelssl.model.vit import Encoder


def teacher_temperature(progress: float, start: float, end: float, warmup: float) -> float:
    """Return the linear ramp from `start` to `end` at progress `warmup`, then `end`."""
    if progress >= warmup:
        return end
    return start + (end - start) * progress / warmup


def sharpened(logits_GNK: Tensor, centre_K: Tensor, temperature: Tensor) -> Tensor:
    """Return log_p_GNK of the keys: softmax of the centred logits over T, in float32 at least."""
    with torch.autocast(logits_GNK.device.type, enabled=False):
        return F.log_softmax((_precise(logits_GNK) - centre_K) / temperature, dim=-1)


def distillation(
    logits_q_SNK: Tensor, log_p_GNK: Tensor, temperature: float, *, leaves_out_same: bool
) -> Tensor:
    """Return the cross entropy -sum_K p log softmax(logits / T), averaged over pairs and images.

    A pair is (key, query). leaves_out_same: query i and key i show the same crop and make no pair
    (facebookresearch/dino, main_dino.py). The result is in float32 at least. The mean over ranks
    equals the mean of one process on all images.
    """
    with torch.autocast(logits_q_SNK.device.type, enabled=False):
        log_q_SNK = F.log_softmax(_precise(logits_q_SNK) / temperature, dim=-1)
        # For each image by itself: a sum over K, not one over N K small terms.
        entropies_NGS = -torch.einsum("gnk,snk->ngs", log_p_GNK.exp(), log_q_SNK)
        entropies_GS = entropies_NGS.mean(0)
        if not leaves_out_same:
            return entropies_GS.mean()
        same = entropies_GS.diagonal()
        return (entropies_GS.sum() - same.sum()) / (entropies_GS.numel() - len(same))


def entropy(log_p_GNK: Tensor) -> Tensor:
    """Return the entropy of the keys' prototype choice in nats, averaged over keys and images.

    The entropy is ln K for a uniform distribution and 0 for a one-hot distribution. DINO collapses
    when the entropy stays at either value.
    """
    return -(log_p_GNK.exp() * log_p_GNK).sum(-1).mean()


class Network(nn.Module):
    """An encoder and a head that turn views into logits. Crops of one size pass together."""

    def __init__(self, encoder: Encoder, head: PrototypeHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, views: Sequence[Tokens]) -> Tensor:
        """Return logits_SNK of S views of equal size and compression."""
        return self.logits(self.features(views))

    def features(self, views: Sequence[Tokens]) -> Tensor:
        """Return features_SND."""
        values = torch.cat([view.values_NLV for view in views])
        keep_idx = torch.cat([view.keep_idx_NL for view in views])
        features: Tensor = self.encoder(values, keep_idx, views[0].p, views[0].grid)
        return features.view(len(views), -1, features.shape[1])

    def logits(self, features_SND: Tensor) -> Tensor:
        logits: Tensor = self.head(features_SND.flatten(0, 1))
        return logits.view(*features_SND.shape[:2], -1)


class DINO(Objective):
    """Two networks of encoder and head, f trained, g its moving average; C a moving centre.

        z_q = f(q), f(small crops)          q as many tokens as the compression leaves
        p   = softmax((g(k) - C) / T_k)     no gradient; patches as large as q's, none dropped
        loss = -sum p log softmax(z_q / T)  the mean over pairs of a key and a query
        C  <- .9 C + .1 mean(g(k))          over keys, images and ranks, after the loss
        g  <- m g + (1 - m) f               after the optimiser; m from .996 to 1 with progress

    mode "paper" (*Accelerating Augmentation Invariance Pretraining*) is called with (q, k, small
    crops): two large crops, one of them the key. "official" with (q1, q2, small crops, k1, k2):
    both are query and key, and a pair is never of one crop. Large crops pass together, small ones
    pass together, then all through the head at once. T_k rises over `teacher_warmup` of the budget;
    the prototypes keep still until `frozen_last` of it, as if they were not the optimiser's.

    After facebookresearch/dino (main_dino.py, utils.py, vision_transformer.py): T .1, T_k .04 to
    .07, stochastic depth of .1 in f alone, trained patch projection and positions. What is
    evaluated is g, without head. Deviations: T_k rises with every step, not once an epoch; the
    patch projection starts normal, not uniform; crops are resampled bilinearly and flipped last;
    bfloat16, without a loss scale, stands for float16, and softmaxes, centre and loss are never in
    it.
    """

    centre_K: Tensor
    key_temperature: Tensor

    def __init__(
        self,
        model: str,
        *,
        mode: str = "paper",
        head_hidden: int = 2048,
        head_out: int = 256,
        prototypes: int = 65536,
        temperature: float = 0.1,
        teacher_temp: tuple[float, float] = (0.04, 0.07),
        teacher_warmup: float = 0.125,
        momentum: float = 0.996,
        centre_momentum: float = 0.9,
        frozen_last: float = 0.0075,
        drop_path: float = 0.1,
    ) -> None:
        super().__init__()
        encoder = Encoder(model, False, learns_positions=True, drop_path=drop_path)
        head = PrototypeHead(encoder.width, head_hidden, head_out, prototypes)
        self.query = Network(encoder, head)
        self.key = MovingAverage(self.query, momentum)
        self._averaged.encoder.leave_out_drop_path()
        self.register_buffer("centre_K", torch.zeros(prototypes))
        self.register_buffer("key_temperature", torch.ones(()), persistent=False)
        self.temperature, self.centre_momentum = temperature, centre_momentum
        self._is_official = mode == "official"
        self._teacher_temp, self._teacher_warmup = teacher_temp, teacher_warmup
        self._frozen_last, self._is_last_frozen = frozen_last, False
        self._notes("teacher_entropy", 0.0)
        self._notes("kl", 0.0)
        self.set_progress(0.0)

    @property
    def evaluated(self) -> Encoder:
        """Return the key's encoder (the paper's teacher) without head."""
        return self._averaged.encoder

    def encoders(self) -> tuple[Encoder, ...]:
        return self.query.encoder, self._averaged.encoder

    def heads(self) -> tuple[nn.Module, ...]:
        return (self.query.head,)

    @property
    def _averaged(self) -> Network:
        averaged = self.key.average
        assert isinstance(averaged, Network)
        return averaged

    @property
    def phase(self) -> Hashable:
        """Return True while the prototypes are frozen."""
        return self._is_last_frozen

    def set_progress(self, progress: float) -> None:
        self.key.set_progress(progress)
        self.key_temperature.fill_(
            teacher_temperature(progress, *self._teacher_temp, self._teacher_warmup)
        )
        self._is_last_frozen = progress < self._frozen_last

    def forward(self, *views: Tokens) -> Tensor:
        """Return the loss of this rank's images and update the centre."""
        queries, small, keys = self._parted(views)
        features = self.query.features(queries)
        self._note_spread(features[0])
        if small:
            features = torch.cat([features, self.query.features(small)])
        logits_q_SNK = self.query.logits(features)
        logits_k_GNK = self.key(keys)
        log_p_GNK = sharpened(logits_k_GNK, self.centre_K, self.key_temperature)
        loss = distillation(
            logits_q_SNK, log_p_GNK, self.temperature, leaves_out_same=self._is_official
        )
        self._move_centre(logits_k_GNK)
        self._note("teacher_entropy", entropy(log_p_GNK))
        self._note("kl", loss.detach() - self.noted["teacher_entropy"])
        return loss

    def after_backward(self) -> None:
        if self._is_last_frozen:
            for parameter in self.query.head.prototypes.parameters():
                parameter.grad = None

    def after_step(self) -> None:
        self.key.follow(self.query)

    def _parted(self, views: Sequence[Tokens]) -> tuple[Sequence[Tokens], ...]:
        """Split the views into queries, small crops and keys."""
        if self._is_official:
            return views[:2], views[2:-2], views[-2:]
        return views[:1], views[2:], views[1:2]

    @torch.no_grad()
    def _move_centre(self, logits_GNK: Tensor) -> None:
        mean_K = gather_detached(_precise(logits_GNK).mean((0, 1))[None]).mean(0)
        self.centre_K.lerp_(mean_K, 1 - self.centre_momentum)


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
