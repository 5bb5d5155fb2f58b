"""Complete configurations, each from its source. `options` override single settings."""

from typing import Any

from accelssl.train.config import TrainConfig
from accelssl.train.schedule import Schedule


def simclr(model: str, data: str, budget: float, schedule: Schedule, **options: Any) -> TrainConfig:
    """SimCLR for ViTs as ronghanghu/moco_v3_tpu trains it, on the paper's clock.

    AdamW, 2e-4 per 256 images, weight decay .1, temperature .1, head 4096-4096-256, frozen random
    patch projection, fixed positions. Uncompressed at batch 4096 for 300 epochs of ImageNet-1k
    (2,300M units at 224 px) that code reaches 73.9% linear accuracy with ViT-B/16; the paper
    reports 68.4 for its accelerated run of 922M.

        accelssl train --algo simclr --data SHARDS --out RUN --budget 922M \\
            --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
    """
    return _config(model, data, budget, schedule, options)


def small_simclr(
    model: str, data: str, budget: float, schedule: Schedule, **options: Any
) -> TrainConfig:
    """SimCLR for some thousand images: a larger rate, a smaller head, no extreme crops.

    1M units on 9,000 pictures of 20 ImageNet classes bring ViT-tiny to 42.6% nn1 at p30 d0.5
    (benchmarks/results/same_budget_h100_202611.md):

        accelssl train --small --data SHARDS --out RUN --budget 1M --model vit_tiny_patch16_224
    """
    small = {"base_lr": 5e-4, "warmup": 0.08, "head_hidden": 2048, "min_area": 0.2}
    return _config(model, data, budget, schedule, small | options)


def demo(data: str, budget: float, schedule: Schedule, **options: Any) -> TrainConfig:
    """ViT-tiny on a thousand tiles of photographs, for minutes on two cores."""
    tiny = {
        "batch": 32,
        "base_lr": 4e-3,
        "warmup": 0.08,
        "head_hidden": 512,
        "head_out": 128,
        "min_area": 0.2,
    }
    return _config("vit_tiny_patch16_224", data, budget, schedule, tiny | options)


def _config(
    model: str, data: str, budget: float, schedule: Schedule, settings: dict[str, Any]
) -> TrainConfig:
    return TrainConfig(
        algo="simclr", model=model, data=data, budget=budget, schedule=schedule, **settings
    )
