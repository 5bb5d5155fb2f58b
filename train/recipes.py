"""Complete configurations, each from its source."""

from accelssl.train.config import TrainConfig
from accelssl.train.schedule import Schedule


def simclr(model: str, data: str, budget: float, schedule: Schedule) -> TrainConfig:
    """SimCLR for ViTs as ronghanghu/moco_v3_tpu trains it, on the paper's clock.

    AdamW, 2e-4 per 256 images, weight decay .1, temperature .1, head 4096-4096-256, frozen random
    patch projection, fixed positions. Uncompressed at batch 4096 for 300 epochs of ImageNet-1k
    (2,300M units at 224 px) that code reaches 73.9% linear accuracy with ViT-B/16; the paper
    reports 68.4 for its accelerated run of 922M.

        accelssl train --algo simclr --data SHARDS --out RUN --budget 922M \\
            --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
    """
    return TrainConfig(algo="simclr", model=model, data=data, budget=budget, schedule=schedule)


def small_simclr(model: str, data: str, budget: float, schedule: Schedule) -> TrainConfig:
    """SimCLR for some thousand images: a larger rate, a smaller head, no extreme crops.

    Tried on 9,000 pictures of 20 ImageNet classes with ViT-S and ViT-tiny; see benchmarks/results.
    """
    return TrainConfig(
        algo="simclr",
        model=model,
        data=data,
        budget=budget,
        schedule=schedule,
        batch=512,
        base_lr=5e-4,
        warmup=0.08,
        head_hidden=2048,
        min_area=0.2,
    )


def demo(data: str, budget: float, schedule: Schedule) -> TrainConfig:
    """ViT-tiny on a thousand tiles of photographs, for minutes on two cores."""
    return TrainConfig(
        algo="simclr",
        model="vit_tiny_patch16_224",
        data=data,
        budget=budget,
        schedule=schedule,
        batch=64,
        base_lr=2e-3,
        warmup=0.08,
        head_hidden=512,
        head_out=128,
        min_area=0.2,
    )
