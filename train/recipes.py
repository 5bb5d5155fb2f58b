"""Complete configurations, each from its source. `options` override single settings."""

from typing import Any

from accelssl.train.config import TrainConfig
from accelssl.train.schedule import Schedule

MOCO: dict[str, Any] = {
    "algo": "moco",
    "base_lr": 1.5e-4,
    "weight_decay": 0.1,
    "warmup": 0.133,
    "temperature": 0.2,
    "momentum": 0.99,
}


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


def moco(model: str, data: str, budget: float, schedule: Schedule, **options: Any) -> TrainConfig:
    """MoCo-v3 for ViTs as its authors train it (facebookresearch/moco-v3), on the paper's clock.

    AdamW, 1.5e-4 per 256 images, weight decay .1 on all parameters, warm-up 40 of 300 epochs, T .2,
    momentum .99 to 1, head 4096-4096-256, predictor 4096-256, frozen random patch projection, fixed
    positions. After the warm-up the rate is this project's 1 - t^2, not their cosine. Uncompressed,
    symmetric, at batch 4096 for 300 epochs of ImageNet-1k their code reaches 76.7% linear accuracy
    with ViT-B/16; the paper, one pair an image at batch 1024, reports 75.9 for an accelerated run
    that it counts as 1542M. Its units are twice this project's there (8 an image, where its own
    formula has 4), so that 771M are the same compute:

        accelssl train --algo moco --data SHARDS --out RUN --budget 771M \\
            --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
    """
    return _config(model, data, budget, schedule, MOCO | options)


def small_moco(
    model: str, data: str, budget: float, schedule: Schedule, **options: Any
) -> TrainConfig:
    """MoCo-v3 for some thousand images: the rate of the paper's ImageNet-100 runs (5e-4 per 256),
    a smaller head, no extreme crops. Chosen after small_simclr, not measured yet.

        accelssl train --algo moco --small --data SHARDS --out RUN --budget 1M \\
            --model vit_tiny_patch16_224
    """
    small = {"base_lr": 5e-4, "warmup": 0.08, "head_hidden": 2048, "min_area": 0.2}
    return _config(model, data, budget, schedule, MOCO | small | options)


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
    settings = {"algo": "simclr"} | settings
    return TrainConfig(model=model, data=data, budget=budget, schedule=schedule, **settings)


RECIPES = {
    ("simclr", False): simclr,
    ("simclr", True): small_simclr,
    ("moco", False): moco,
    ("moco", True): small_moco,
}
"""By method, and whether the images are only thousands."""
