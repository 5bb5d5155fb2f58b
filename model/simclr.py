"""SimCLR: two views of an image attract, views of different images repel.

Shapes: N images on this rank, M over all ranks, 2N and 2M views, B further negatives, D width,
E projected width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.gather import gather, rank
from accelssl.model.heads import ProjectionHead, normalised
from accelssl.model.objective import Objective
from accelssl.model.tokens import Tokens
from accelssl.model.vit import Encoder


def nt_xent(
    z_q_NE: Tensor, z_k_NE: Tensor, temperature: float, bank_BE: Tensor | None = None
) -> Tensor:
    """Return the normalised-temperature cross entropy, mean over this rank's 2N views.

    Each view has to pick its partner among the other 2M - 1 views of all ranks by cosine
    similarity; the view itself is excluded (Chen et al., ICML 2020, equation 1;
    google-research/simclr, objective.py). The result is in float32 at least. The mean over ranks,
    of loss and gradients, equals that of one process on all images. bank_BE: normalised views of
    further images.
    """
    with torch.autocast(z_q_NE.device.type, enabled=False):
        z = normalised(torch.cat([z_q_NE, z_k_NE]))
        others = gather(z) if bank_BE is None else torch.cat([gather(z), bank_BE])
        logits = z @ others.T / temperature
        views = torch.arange(len(z), device=z.device)
        first = rank() * len(z)  # rank r's views are columns 2N r to 2N (r + 1)
        itself = torch.arange(logits.shape[1], device=z.device) == (first + views)[:, None]
        partner = first + views.roll(len(z) // 2)
        return F.cross_entropy(logits.masked_fill(itself, float("-inf")), partner)


class SimCLR(Objective):
    """The two views go through one encoder and one head; NT-Xent with temperature T.

        h = encoder([q; k]), z = head(h), loss = nt_xent(z_q, z_k, T)

    After ronghanghu/moco_v3_tpu (models.py, losses.py), SimCLR's setting for ViTs. Deviations:
    both views are stacked into one batch, so that the head's batch norm sees 2N views at once, as
    in the first paper's code; the loss is a mean, theirs the same mean written in two halves.
    """

    def __init__(
        self,
        model: str,
        *,
        head_hidden: int = 4096,
        head_out: int = 256,
        temperature: float = 0.1,
        freeze_patch_embed: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(model, freeze_patch_embed)
        self.head = ProjectionHead(self.encoder.width, head_hidden, head_out)
        self.temperature = temperature
        self._loss_of = _loss_of

    @property
    def evaluated(self) -> Encoder:
        return self.encoder

    def encoders(self) -> tuple[Encoder, ...]:
        return (self.encoder,)

    def heads(self) -> tuple[nn.Module, ...]:
        return (self.head,)

    @property
    def is_one_pass(self) -> bool:
        return True

    def compile_head(self) -> None:
        super().compile_head()
        self._loss_of = torch.compile(_loss_of, dynamic=False)

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        """Return the loss of this rank's pairs. Both views have the same p and the same keep."""
        features_2ND = self._features(query, key)
        self._note_spread(features_2ND)
        return self._loss_of(self.head, features_2ND, self.temperature, *self.bank)

    def negatives(self, *views: Tokens) -> tuple[Tensor, ...]:
        return (normalised(self.head(self._features(*views))),)

    def _features(self, query: Tokens, key: Tokens) -> Tensor:
        values_2NLV = torch.cat([query.values_NLV, key.values_NLV])
        keep_idx_2NL = torch.cat([query.keep_idx_NL, key.keep_idx_NL])
        features_2ND: Tensor = self.encoder(values_2NLV, keep_idx_2NL, query.p, query.grid)
        return features_2ND


def _loss_of(head: nn.Module, features_2ND: Tensor, temperature: float, *bank: Tensor) -> Tensor:
    z_q_NE, z_k_NE = head(features_2ND).chunk(2)
    return nt_xent(z_q_NE, z_k_NE, temperature, *bank)
