"""DINO: queries, small crops among them, predict the prototypes of a key. No torch.

Caron et al., ICCV 2021, with the settings of facebookresearch/dino. The key network is a moving
average of the query's and follows after the optimiser; its encoder is evaluated. The loss and its
deviations are in model/dino.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.text import plural
from accelssl.train.config.cost import Convention, dino_cost
from accelssl.train.config.flops import ModelShape, Pass, forward, linear, trained
from accelssl.train.config.ranges import require, require_momentum, require_temperature
from accelssl.train.config.schedule import Schedule
from accelssl.train.methods.method import Method, register

if TYPE_CHECKING:
    from accelssl.model.objective import Objective

MODES = ("paper", "official")
_MIN_PROTOTYPES = 16


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
    only_here: ClassVar = ("n_local", "mode", "drop_path")

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with which the authors train ViT-B/16 (facebookresearch/dino).

        AdamW, 7.5e-4 per 256 images, weight decay .04 to .4, gradients of a parameter clipped at
        .3, warm-up 10 of 400 epochs, T .1, T_k .04 to .07 over 50, prototypes still for 3,
        momentum .996 to 1 (.9995 is better at batch 256), head 2048-2048-256 and 65,536
        prototypes, stochastic depth .1. After the warm-up the rate is this project's 1 - t^2, not
        their cosine. Their 400 epochs of ImageNet-1k at batch 1024, uncompressed, with two large
        crops as query and key and ten small ones, reach 76.1% by nearest neighbours and 78.2%
        linear accuracy.

        mode "paper" (the default) has one pair of large crops and six small crops, which fits
        what the paper counts: 2846M units for 300 epochs, uncompressed, and 77.4% linear accuracy
        from 1138M. mode "official" has ten. Without small crops the large ones are of .14 of the
        image at least, else of .25:

            accelssl train --algo dino --data SHARDS --out RUN --budget 1138M \\
                --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
        """
        most = 10 if options.get("mode") == "official" else 6
        n_local = options.get("n_local", most)
        return {
            "n_local": n_local,
            "min_area": 0.25 if n_local else 0.14,
            "base_lr": 7.5e-4,
            "weight_decay": 0.04,
            "final_weight_decay": 0.4,
            "clip": 0.3,
            "warmup": 0.025,
            "temperature": 0.1,
            "momentum": 0.996,
            "head_hidden": 2048,
            "head_out": 256,
            "prototypes": 65536,
            "teacher_temp_start": 0.04,
            "teacher_temp": 0.07,
            "teacher_warmup": 0.125,
            "frozen_last": 0.0075,
            "drop_path": 0.1,
        }

    def check(self, schedule: Schedule) -> None:
        """Raise UserError for a setting out of its range, or small crops larger than the large."""
        super().check(schedule)
        require_momentum(self.momentum, best=0.996)
        if self.mode not in MODES:
            raise UserError(f"--mode {self.mode!r} is not known.", f"Use {' or '.join(MODES)}.")
        require(self.n_local >= 0, "n_local", self.n_local, "of 0 or more, best 6 to 10")
        low, high = self.local_min_area, self.local_max_area
        require(0 < low <= 1, "local_min_area", low, "above 0 and at most 1")
        require(low <= high <= 1, "local_max_area", high, f"from {low:g} to 1")
        if self.n_local:
            self._check_small_crops(schedule)
        need = f"at least {_MIN_PROTOTYPES}, best 65536"
        require(self.prototypes >= _MIN_PROTOTYPES, "prototypes", self.prototypes, need)
        best = "best 0.04 to 0.07"
        require_temperature("teacher_temp", self.teacher_temp, best)
        require_temperature("teacher_temp_start", self.teacher_temp_start, best)
        require(0 <= self.teacher_warmup <= 1, "teacher_warmup", self.teacher_warmup, "0 to 1")
        require(0 <= self.frozen_last <= 1, "frozen_last", self.frozen_last, "from 0 to 1")
        require(0 <= self.drop_path < 1, "drop_path", self.drop_path, "from 0 to below 1")

    def _check_small_crops(self, schedule: Schedule) -> None:
        fits = self.local_size >= 16 and self.local_size % 16 == 0
        require(fits, "local_size", self.local_size, "that is a multiple of 16")
        if self.size <= self.local_size:
            each = math.lcm(*(stage.compression.p for stage in schedule.stages))
            larger = (self.local_size // each + 1) * each
            raise UserError(
                f"Crops of {self.size} px (--size) are not larger than DINO's small crops of "
                f"{self.local_size} px.",
                f"Use --size {larger} or more, or --local-crops 0.",
            )

    @property
    def n_global(self) -> int:
        """Return how many large crops are queries, and as many keys."""
        return 2 if self.mode == "official" else 1

    @property
    def label(self) -> str:
        """Return the name with mode and small crops."""
        return f"{self.mode} mode of dino with {plural(self.n_local, 'small crop')}"

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

    def step_flops(self, shape: ModelShape, images: int, compression: Compression) -> int:
        """Count trained queries and small crops, and keys only evaluated."""
        grid = compression.grid(self.size)
        query = Pass(images, compression.keep(self.size), grid, compression.p)
        key = Pass(images, grid**2, grid, compression.p)
        side = UNCOMPRESSED.grid(self.local_size) if self.n_local else 0
        small = Pass(images, side**2, side, UNCOMPRESSED.p)
        return dino_flops(shape, query, small, key, self.n_global, self.n_local)


def dino_flops(
    shape: ModelShape, query: Pass, small: Pass, key: Pass, n_global: int, n_local: int
) -> int:
    """Count n_global large crops as query and as many as key; n_local small ones are queries too.

    The three are of one crop. Those of a kind go through the encoder together.
    """
    n, prototypes = query.views, shape.head[-1][1]
    passes = [_times(query, n_global), *([_times(small, n_local)] if n_local else [])]
    queries = n_global + n_local
    query_flops = sum(trained(shape, each) for each in passes) + 3 * queries * n * linear(
        shape.head
    )
    keys = forward(shape, _times(key, n_global)) + n_global * n * linear(shape.head)
    loss = 2 * n * n_global * queries * prototypes
    return query_flops + keys + 2 * loss


def _times(each: Pass, views: int) -> Pass:
    return Pass(each.views * views, each.patches, each.grid, each.p)
