"""MoCo-v3: a query finds the key of the same image among the keys of all images. No torch.

Chen et al., ICCV 2021, with the settings of facebookresearch/moco-v3. The key encoder is a moving
average of the query's and follows before the keys are computed. The loss and its deviations are in
model/moco.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.train.config.cost import Convention, moco_cost
from accelssl.train.config.flops import ModelShape, Pass, forward, linear, trained
from accelssl.train.config.ranges import require_momentum
from accelssl.train.config.schedule import Schedule
from accelssl.train.methods.method import Method, register

if TYPE_CHECKING:
    from accelssl.model.objective import Objective


@register
@dataclass(frozen=True)
class MoCoMethod(Method):
    """MoCo-v3 with its settings."""

    momentum: float = 0.99
    """Momentum of the key encoder at the start; at the end it is 1."""
    symmetric: bool = False
    """True if both views are query and key, at twice the cost."""

    name: ClassVar = "moco"
    title: ClassVar = "MoCo v3"
    decays_vectors: ClassVar = True
    only_here: ClassVar = ("symmetric",)

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with which the authors train ViTs (facebookresearch/moco-v3).

        AdamW, 1.5e-4 per 256 images, weight decay .1 on all parameters, warm-up 40 of 300 epochs,
        T .2, momentum .99 to 1, head 4096-4096-256, predictor 4096-256, frozen random patch
        projection, fixed positions. After the warm-up the rate is this project's 1 - t^2, not
        their cosine. Uncompressed, symmetric, at batch 4096 for 300 epochs of ImageNet-1k their
        code reaches 76.7% linear accuracy with ViT-B/16; the paper, one pair an image at batch
        1024, reports 75.9 for an accelerated run that it counts as 1542M. Its units are twice
        this project's there (8 an image, where its own formula has 4), so that 771M are the same
        compute:

            accelssl train --algo moco --data SHARDS --out RUN --budget 771M \\
                --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
        """
        return {
            "base_lr": 1.5e-4,
            "weight_decay": 0.1,
            "warmup": 0.133,
            "temperature": 0.2,
            "momentum": 0.99,
        }

    def check(self, schedule: Schedule) -> None:
        """Raise UserError for a momentum outside 0 to 1."""
        super().check(schedule)
        require_momentum(self.momentum, best=0.99)

    @property
    def label(self) -> str:
        """Return the name, after "symmetric" for the symmetric loss."""
        return f"symmetric {self.name}" if self.symmetric else self.name

    @property
    def loss_note(self) -> str:
        """Return a note about one-sided loss: half of the symmetric one."""
        if self.symmetric:
            return ""
        return "It is that of one pair an image, half of MoCo-v3's symmetric one."

    def views(self) -> tuple[views.View, ...]:
        """Return two views of different blur; with one pair an image they swap at random."""
        return views.moco(self.size, (self.min_area, 1.0), swaps_roles=not self.symmetric)

    def compressions(self, compression: Compression) -> tuple[Compression, ...]:
        """Return query, key; if symmetric query, query, key, key. Keys are of whole images."""
        whole = Compression(compression.p, 0.0)
        pairs = 2 if self.symmetric else 1
        return (compression,) * pairs + (whole,) * pairs

    def sample_cost(
        self, compression: Compression, convention: Convention = Convention.PATCHES196
    ) -> float:
        """Return the units of a trained query and a key that is only evaluated."""
        l_q, l_k = compression.keep(self.size), compression.grid(self.size) ** 2
        return moco_cost(l_q, l_k, convention) * (2 if self.symmetric else 1)

    def objective(self, model: str) -> Objective:
        """Build MoCo-v3's objective."""
        from accelssl.model.moco import MoCo

        return MoCo(
            model,
            head_hidden=self.head_hidden,
            head_out=self.head_out,
            temperature=self.temperature,
            momentum=self.momentum,
        )

    def step_flops(self, shape: ModelShape, images: int, compression: Compression) -> int:
        """Count a trained query and a key that is only evaluated."""
        grid = compression.grid(self.size)
        query = Pass(images, compression.keep(self.size), grid, compression.p)
        key = Pass(images, grid**2, grid, compression.p)
        return moco_flops(shape, query, key) * (2 if self.symmetric else 1)


def moco_flops(shape: ModelShape, query: Pass, key: Pass) -> int:
    """Count one pair an image: a query meets all keys, which need no gradient."""
    loss = 2 * query.views * key.views * shape.head[-1][1]
    query_flops = trained(shape, query) + 3 * query.views * (
        linear(shape.head) + linear(shape.predictor)
    )
    return query_flops + forward(shape, key) + key.views * linear(shape.head) + 2 * loss
