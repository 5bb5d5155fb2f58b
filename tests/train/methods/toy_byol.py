"""A fourth method in one file, as a user adds one: a predictor and a moving average, no negatives.

After BYOL (Grill et al., NeurIPS 2020) with one pair an image: the loss is the negative cosine of
the predicted query and the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.ema import MovingAverage
from accelssl.model.heads import moco_head
from accelssl.model.moco import Branch
from accelssl.model.objective import Objective
from accelssl.model.tokens import Tokens
from accelssl.model.vit import Encoder
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.train.config.cost import Convention, moco_cost
from accelssl.train.config.flops import ModelShape, Pass, forward, linear, trained
from accelssl.train.config.ranges import require_momentum
from accelssl.train.config.schedule import Schedule
from accelssl.train.methods.method import Method, register

NAME = "toy_byol"


class ToyBYOL(Objective):
    """A trained branch with a predictor, and its moving average, which follows the optimiser."""

    def __init__(self, model: str, hidden: int, out: int, momentum: float) -> None:
        super().__init__()
        encoder = Encoder(model, True)
        self.query = Branch(encoder, moco_head(3, encoder.width, hidden, out))
        self.predictor = moco_head(2, out, hidden, out)
        self.key = MovingAverage(self.query, momentum)

    @property
    def evaluated(self) -> Encoder:
        return self.query.encoder

    def encoders(self) -> tuple[Encoder, ...]:
        averaged = self.key.average
        assert isinstance(averaged, Branch)
        return self.query.encoder, averaged.encoder

    def heads(self) -> tuple[nn.Module, ...]:
        return self.query.projector, self.predictor

    def set_progress(self, progress: float) -> None:
        self.key.set_progress(progress)

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        """Return the mean of -cos(h(f(q)), g(k)) over this rank's images."""
        features_ND = self.query.features(query)
        self._note_spread(features_ND)
        z_q_NE = self.predictor(self.query.projector(features_ND))
        z_k_NE = self.key(key)
        with torch.autocast(z_q_NE.device.type, enabled=False):
            return -F.cosine_similarity(z_q_NE.float(), z_k_NE.float()).mean()

    def after_step(self) -> None:
        self.key.follow(self.query)


@register
@dataclass(frozen=True)
class ToyBYOLMethod(Method):
    """The toy with its settings."""

    momentum: float = 0.99
    """Momentum of the key encoder at the start."""

    name: ClassVar = NAME
    title: ClassVar = "Toy BYOL"
    has_negatives: ClassVar = False

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a larger rate."""
        return {"base_lr": 1e-3}

    def check(self, schedule: Schedule) -> None:
        """Raise UserError for a momentum outside 0 to 1."""
        super().check(schedule)
        require_momentum(self.momentum, best=0.99)

    def views(self) -> tuple[views.View, ...]:
        """Return MoCo-v3's views."""
        return views.moco(self.size, (self.min_area, 1.0))

    def compressions(self, compression: Compression) -> tuple[Compression, ...]:
        """Drop tokens from the query alone."""
        return compression, Compression(compression.p, 0.0)

    def sample_cost(
        self, compression: Compression, convention: Convention = Convention.PATCHES196
    ) -> float:
        """Return the units of a trained query and a key that is only evaluated."""
        l_q, l_k = compression.keep(self.size), compression.grid(self.size) ** 2
        return moco_cost(l_q, l_k, convention)

    def objective(self, model: str) -> Objective:
        """Build the objective."""
        return ToyBYOL(model, self.head_hidden, self.head_out, self.momentum)

    def step_flops(self, shape: ModelShape, images: int, compression: Compression) -> int:
        """Count a trained query and a key that is only evaluated."""
        grid = compression.grid(self.size)
        query = Pass(images, compression.keep(self.size), grid, compression.p)
        key = Pass(images, grid**2, grid, compression.p)
        heads = 3 * (linear(shape.head) + linear(shape.predictor)) + linear(shape.head)
        return trained(shape, query) + forward(shape, key) + images * heads
