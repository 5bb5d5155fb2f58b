"""MoCo-v3: a query finds the key of the same image, made by a slower encoder, among all keys.

Shapes: N images on this rank, M over all ranks, B further keys, D width, E projected width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.ema import MovingAverage
from accelssl.model.gather import gather_detached, rank
from accelssl.model.heads import moco_head, normalised
from accelssl.model.objective import Objective
from accelssl.model.tokens import Tokens
from accelssl.model.vit import Encoder


def contrast(
    z_q_NE: Tensor, z_k_NE: Tensor, temperature: float, bank_BE: Tensor | None = None
) -> Tensor:
    """Return queries' cross entropy over the keys of all ranks, times 2T, in float32 at least.

    The result is the mean over this rank's N queries. The target of query i is key i of its own
    rank among M keys, by cosine similarity over T (Chen et al., ICCV 2021, algorithm 1;
    facebookresearch/moco-v3, moco/builder.py). Keys get no gradient. The mean over ranks, of loss
    and gradients, equals that of one process on all images. bank_BE: normalised keys of further
    images.
    """
    with torch.autocast(z_q_NE.device.type, enabled=False):
        q_NE = normalised(z_q_NE)
        k_ME = gather_detached(normalised(z_k_NE.detach()))
        logits_NM = q_NE @ (k_ME if bank_BE is None else torch.cat([k_ME, bank_BE])).T / temperature
        first = rank() * len(q_NE)  # rank r's keys are columns N r to N (r + 1)
        own = first + torch.arange(len(q_NE), device=q_NE.device)
        return F.cross_entropy(logits_NM, own) * (2 * temperature)


class Branch(nn.Module):
    """An encoder, features_ND, and a projector of three layers, from tokens to z_NE."""

    def __init__(self, encoder: Encoder, projector: nn.Module) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, view: Tokens) -> Tensor:
        z_NE: Tensor = self.projector(self.features(view))
        return z_NE

    def features(self, view: Tokens) -> Tensor:
        features_ND: Tensor = self.encoder(view.values_NLV, view.keep_idx_NL, view.p, view.grid)
        return features_ND


class MoCo(Objective):
    """Two branches of encoder and projector, f trained, g its moving average; a predictor h.

        z_q = h(f(q))                       as many tokens as the compression leaves
        g  <- m g + (1 - m) f               before the keys; m from 0.99 to 1 with progress
        z_k = g(k)                          no gradient; patches as large as q's, none dropped
        loss = 2T CE(z_q z_k' / T)          z normalised, keys of all ranks

    Called with (q, k): one pair an image, as in *Accelerating Augmentation Invariance
    Pretraining*; (q1, q2, k1, k2), both views through both branches, gives the original's
    symmetric loss(q1, k2) + loss(q2, k1). Each view passes alone, so that batch norms, which are
    over all ranks, see one view at a time; the key's projector normalises with its own statistics.

    After facebookresearch/moco-v3 (moco/builder.py, vits.py): projector D-4096-4096-256, predictor
    256-4096-256, T = .2, frozen random patch projection, fixed sin-cos positions, feature = CLS
    after the last norm. Deviations: with one pair the loss is half of the symmetric one; positions
    are taken at coordinates scaled to the patch side; the model is timm's, whose
    vit_small_patch16_224 has 6 heads where theirs has 12; bfloat16, without a loss scale, stands
    for their float16, and normalisation, logits and loss are never in it.
    """

    def __init__(
        self,
        model: str,
        *,
        head_hidden: int = 4096,
        head_out: int = 256,
        temperature: float = 0.2,
        momentum: float = 0.99,
        freeze_patch_embed: bool = True,
    ) -> None:
        super().__init__()
        encoder = Encoder(model, freeze_patch_embed)
        self.query = Branch(encoder, moco_head(3, encoder.width, head_hidden, head_out))
        self.predictor = moco_head(2, head_out, head_hidden, head_out)
        self.key = MovingAverage(self.query, momentum)
        self.temperature = temperature

    @property
    def evaluated(self) -> Encoder:
        """Return the query's encoder, without head."""
        return self.query.encoder

    def encoders(self) -> tuple[Encoder, ...]:
        averaged = self.key.average
        assert isinstance(averaged, Branch)
        return self.query.encoder, averaged.encoder

    def heads(self) -> tuple[nn.Module, ...]:
        return self.query.projector, self.predictor

    def set_progress(self, progress: float) -> None:
        self.key.set_progress(progress)

    def forward(self, *views: Tokens) -> Tensor:
        """Return the loss of this rank's images. The views are queries first, then as many keys."""
        queries, keys = views[: len(views) // 2], views[len(views) // 2 :]
        features = [self.query.features(view) for view in queries]
        self._note_spread(features[0])
        z_q = [self.predictor(self.query.projector(features_ND)) for features_ND in features]
        self.key.follow(self.query)
        z_k = [self.key(view) for view in keys]
        # A query meets the key of the other view: of two in the symmetric loss, else the only one.
        banks = self.bank or (None,) * len(z_q)
        terms = [
            contrast(q, k, self.temperature, bank)
            for q, k, bank in zip(z_q, reversed(z_k), banks, strict=True)
        ]
        return torch.stack(terms).sum()

    def negatives(self, *views: Tokens) -> tuple[Tensor, ...]:
        """Return keys of these images, in the order of the queries that they are compared with."""
        return tuple(normalised(self.key(view)) for view in reversed(views[len(views) // 2 :]))
