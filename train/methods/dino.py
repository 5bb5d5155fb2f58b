"""DINO: queries, small crops among them, predict the prototypes of a key. No torch.

Caron et al., ICCV 2021, with the settings of facebookresearch/dino. The key network is a moving
average of the query's and follows after the optimiser; its encoder is evaluated. The loss and its
deviations are in model/dino.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from accelssl.pipeline import views
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.cost import Convention, dino_cost
from accelssl.train.methods.method import Method, register

if TYPE_CHECKING:
    from accelssl.model.objective import Objective

MODES = ("paper", "official")


@register
@dataclass(frozen=True)
class DINOMethod(Method):
    """DINO with its settings."""

    momentum: float = 0.99
    """Momentum of the key network at the start; at the end it is 1."""
    mode: str = "paper"
    """"paper": one large crop is the query, the other the key. "official": both are both."""
    n_local: int = 0
    """Small crops of an image."""
    local_size: int = 96
    """Side of a small crop in pixels."""
    local_min_area: float = 0.05
    """Smallest small crop, as a share of the image."""
    local_max_area: float = 0.25
    """Largest small crop, as a share of the image."""
    prototypes: int = 65536
    """Width of the head's last layer; head_out is the bottleneck before it."""
    teacher_temp_start: float = 0.04
    """Temperature of the key's softmax at the start."""
    teacher_temp: float = 0.07
    """Temperature of the key's softmax after its warm-up."""
    teacher_warmup: float = 0.125
    """Share of the budget over which the key's temperature rises."""
    frozen_last: float = 0.0075
    """Share of the budget for which the prototypes are not trained."""
    drop_path: float = 0.0
    """Stochastic depth of the query network."""

    name: ClassVar = "dino"
    title: ClassVar = "DINO"
    has_negatives: ClassVar = False

    @property
    def n_global(self) -> int:
        """Return how many large crops are queries, and as many keys."""
        return 2 if self.mode == "official" else 1

    def views(self) -> tuple[views.View, ...]:
        """Return two large crops, then the small ones."""
        return views.dino(
            self.size,
            (self.min_area, 1.0),
            n_local=self.n_local,
            local_size=self.local_size,
            local_scale=(self.local_min_area, self.local_max_area),
            swaps_roles=self.mode == "paper",
        )

    def compressions(self, compression: Compression) -> tuple[Compression, ...]:
        """Return query, key, small crops; in official mode queries, small crops, keys.

        Keys are of whole images. Small crops are never compressed.
        """
        whole, small = Compression(compression.p, 0.0), (UNCOMPRESSED,) * self.n_local
        if self.mode == "official":
            return compression, compression, *small, whole, whole
        return compression, whole, *small

    def sample_cost(
        self, compression: Compression, convention: Convention = Convention.PATCHES196
    ) -> float:
        """Return the units of trained queries and small crops, and keys only evaluated."""
        l_q, l_k = compression.keep(self.size), compression.grid(self.size) ** 2
        l_local = UNCOMPRESSED.keep(self.local_size)
        return dino_cost(l_q, l_k, self.n_local, l_local, convention, n_global=self.n_global)

    def objective(self, model: str) -> Objective:
        """Build DINO's objective."""
        from accelssl.model.dino import DINO

        return DINO(
            model,
            mode=self.mode,
            head_hidden=self.head_hidden,
            head_out=self.head_out,
            prototypes=self.prototypes,
            temperature=self.temperature,
            teacher_temp=(self.teacher_temp_start, self.teacher_temp),
            teacher_warmup=self.teacher_warmup,
            momentum=self.momentum,
            frozen_last=self.frozen_last,
            drop_path=self.drop_path,
        )
