"""Complete configurations, each from its source. `options` override single settings."""

from typing import Any

from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule

MOCO: dict[str, Any] = {
    "algo": "moco",
    "base_lr": 1.5e-4,
    "weight_decay": 0.1,
    "warmup": 0.133,
    "temperature": 0.2,
    "momentum": 0.99,
}

DINO: dict[str, Any] = {
    "algo": "dino",
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


def dino(model: str, data: str, budget: float, schedule: Schedule, **options: Any) -> TrainConfig:
    """DINO as its authors train ViT-B/16 (facebookresearch/dino), on the paper's clock.

    AdamW, 7.5e-4 per 256 images, weight decay .04 to .4, gradients of a parameter clipped at .3,
    warm-up 10 of 400 epochs, T .1, T_k .04 to .07 over 50, prototypes still for 3, momentum .996 to
    1 (.9995 is better at batch 256), head 2048-2048-256 and 65,536 prototypes, stochastic depth .1.
    After the warm-up the rate is this project's 1 - t^2, not their cosine. Their 400 epochs of
    ImageNet-1k at batch 1024, uncompressed, with two large crops as query and key and ten small
    ones, reach 76.1% by nearest neighbours and 78.2% linear accuracy.

    mode "paper" (the default) has one pair of large crops and six small crops, which fits what the
    paper counts: 2846M units for 300 epochs, uncompressed, and 77.4% linear accuracy from 1138M.
    mode "official" has ten. Without small crops the large ones are of .14 of the image at least,
    else of .25:

        accelssl train --algo dino --data SHARDS --out RUN --budget 1138M \\
            --model vit_base_patch16_224 --batch 1024 --patch 30 --drop 0.5
    """
    return _config(model, data, budget, schedule, _dino_crops(options) | DINO | options)


def _dino_crops(options: dict[str, Any]) -> dict[str, Any]:
    n_local = options.get("n_local", 10 if options.get("mode") == "official" else 6)
    return {"n_local": n_local, "min_area": 0.25 if n_local else 0.14}


def _config(
    model: str, data: str, budget: float, schedule: Schedule, settings: dict[str, Any]
) -> TrainConfig:
    settings = {"algo": "simclr"} | settings
    return TrainConfig(model=model, data=data, budget=budget, schedule=schedule, **settings)


RECIPES = {"simclr": simclr, "moco": moco, "dino": dino}
"""Defaults by method."""
