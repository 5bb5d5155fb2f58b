"""SimCLR: two views of an image, both trained, attract; all others repel. No torch.

Chen et al., ICML 2020, with the settings of ronghanghu/moco_v3_tpu for ViTs. The loss and its
deviations are in model/simclr.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accelssl.pipeline import views
from accelssl.pipeline.compression import BASE_SIDE, Compression
from accelssl.train.config.cost import Convention, simclr_cost
from accelssl.train.config.flops import ModelShape, Pass, linear, trained
from accelssl.train.methods.method import Method, register

if TYPE_CHECKING:
    from accelssl.model.objective import Objective


@register
@dataclass(frozen=True)
class SimCLRMethod(Method):
    """SimCLR with its settings."""

    name: ClassVar = "simclr"
    title: ClassVar = "SimCLR"

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with which ronghanghu/moco_v3_tpu trains ViTs.

        AdamW, 2e-4 per 256 images, weight decay .1, temperature .1, head 4096-4096-256, frozen
        random patch projection, fixed positions. Uncompressed at batch 4096 for 300 epochs of
        ImageNet-1k (2,300M units at 224 px) that code reaches 73.9% linear accuracy with
        ViT-B/16; the paper reports 68.4 for its accelerated run of 922M.

            accelssl train --algo simclr --data SHARDS --out RUN --budget 922M \\
                --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
        """
        return {}

    def views(self) -> tuple[views.View, ...]:
        """Return two views that are drawn alike."""
        return views.simclr(self.size, (self.min_area, 1.0))

    def compressions(self, compression: Compression) -> tuple[Compression, ...]:
        """Compress both views: both are trained."""
        return compression, compression

    def sample_cost(
        self, compression: Compression, convention: Convention = Convention.PATCHES196
    ) -> float:
        """Return the units of two trained views."""
        kept = compression.keep(self.size)
        return simclr_cost(kept, kept, convention)

    def objective(self, model: str) -> Objective:
        """Build SimCLR's objective."""
        from accelssl.model.simclr import SimCLR

        return SimCLR(
            model,
            head_hidden=self.head_hidden,
            head_out=self.head_out,
            temperature=self.temperature,
        )

    def step_flops(self, shape: ModelShape, images: int, compression: Compression) -> int:
        """Count two trained views of each image."""
        return simclr_flops(shape, images, compression.keep(self.size))


def simclr_flops(shape: ModelShape, pairs: int, patches: int) -> int:
    """Count two views of each of `pairs` images, `patches` tokens each, that meet all others.

    With fixed positions, as SimCLR has them, the places of the patches make no difference.
    """
    views = 2 * pairs
    loss = 2 * views**2 * shape.head[-1][1]
    encoder = trained(shape, Pass(views, patches, 0, BASE_SIDE))
    return encoder + 3 * (views * linear(shape.head) + loss)
