"""Complete configurations of each method (train/methods). `options` override single settings."""

from functools import partial
from typing import Any

from accelssl.pipeline.compression import Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.methods.method import method_named


def usual(
    algo: str,
    model: str,
    data: str,
    budget: float,
    schedule: Schedule,
    *,
    small: bool = False,
    **options: Any,
) -> TrainConfig:
    """Build the configuration of a method's recipe, or of its recipe for some thousand images."""
    method = method_named(algo)
    settings = method.small_recipe(options) if small else method.recipe(options)
    return TrainConfig(algo, model, data, budget, schedule, **(settings | options))


simclr, small_simclr = partial(usual, "simclr"), partial(usual, "simclr", small=True)
moco, small_moco = partial(usual, "moco"), partial(usual, "moco", small=True)
dino, small_dino = partial(usual, "dino"), partial(usual, "dino", small=True)

# Cheapest first: an image of the first stage costs 0.37 units, of the second 0.98.
DEMO_SCHEDULE = Schedule(
    (Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(30, 0.5))), "the demo's recipe"
)


def demo(data: str, budget: float, schedule: Schedule, **options: Any) -> TrainConfig:
    """ViT-tiny on a thousand tiles of photographs, for minutes on two cores."""
    tiny: dict[str, Any] = {
        "model": "vit_tiny_patch16_224",
        "batch": 32,
        "base_lr": 4e-3,
        "warmup": 0.08,
        "head_hidden": 512,
        "head_out": 128,
        "min_area": 0.2,
    }
    chosen = tiny | options
    return simclr(chosen.pop("model"), data, budget, schedule, **chosen)
