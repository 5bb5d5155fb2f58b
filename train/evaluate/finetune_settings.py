"""Settings of a fine-tuning as one frozen value, and the presets deit and mae."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from accelssl.errors import UserError
from accelssl.train.evaluate.linear_presets import refuse_unknown_preset

Pool = Literal["token", "avg"]


@dataclass(frozen=True)
class FinetuneSettings:
    """Everything that determines a fine-tuning besides weights and data.

    base_lr: learning rate per 256 images; the peak is base_lr times batch / 256. start_lr: rate at
    the start of warm-up. min_lr: rate at the end of the cosine. moves_each_step: the rate changes
    every step and the cosine begins after warm-up, as in MAE; otherwise the rate changes every
    epoch and warm-up replaces the beginning of the cosine, as in DeiT. layer_decay: ratio of the
    rates of a layer and the next one (1: equal). pool: the classifier's input, the CLS token after
    the last norm, or the mean of the patch tokens with a new norm. head_std: standard deviation of
    the classifier's initial weights.

    repeats: how often an epoch shows each of its pictures; it has fewer different ones in
    proportion (repeated augmentation). mixup and cutmix: alphas of their beta distributions, 0 for
    none. switch: share of cutmix. erase: share of pictures with a rectangle of noise. ema_decay: 0
    for no moving average. most_at_once: largest piece of a batch; each piece is mixed separately,
    as on each GPU of the originals.
    """

    preset: str
    epochs: int
    base_lr: float
    min_lr: float
    start_lr: float
    moves_each_step: bool
    layer_decay: float
    pool: Pool
    head_std: float
    repeats: int
    ema_decay: float
    batch: int = 1024
    most_at_once: int = 128
    warmup_epochs: int = 5
    weight_decay: float = 0.05
    drop_path: float = 0.1
    rand_augment: str = "rand-m9-mstd0.5-inc1"
    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5
    smoothing: float = 0.1
    erase: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "--epochs", self.epochs, "at least 1")
        _require(self.batch >= 2, "--batch", self.batch, "at least 2, best 1024")
        _require(self.batch % 2 == 0, "--batch", self.batch, "that is even: images mix in pairs")
        _require(self.most_at_once >= 2, "most_at_once", self.most_at_once, "at least 2")
        _require(self.base_lr > 0, "--lr", self.base_lr, "above 0")
        _require(
            0 <= self.warmup_epochs < self.epochs,
            "warmup_epochs",
            self.warmup_epochs,
            f"from 0 to below the {self.epochs} epochs of all",
        )
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        _require(0 < self.layer_decay <= 1, "layer_decay", self.layer_decay, "above 0, at most 1")
        _require(0 <= self.drop_path < 1, "drop_path", self.drop_path, "from 0 to below 1")
        _require(0 <= self.ema_decay < 1, "ema_decay", self.ema_decay, "from 0 to below 1")
        _require(self.repeats >= 1, "repeats", self.repeats, "at least 1")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2^32 - 1")
        if self.pool not in ("token", "avg"):
            raise UserError(f"Pooling {self.pool!r} is not known.", "Use token or avg.")

    @property
    def peak_lr(self) -> float:
        return self.base_lr * self.batch / 256

    @property
    def at_once(self) -> int:
        """Return the images in a piece: the largest even divisor of the batch within the limit."""
        fitting = range(2, min(self.most_at_once, self.batch) + 1, 2)
        return max(n for n in fitting if self.batch % n == 0)

    @property
    def pieces(self) -> int:
        """Return the number of pieces in a batch."""
        return self.batch // self.at_once

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def deit() -> FinetuneSettings:
    """Return DeiT's training (Touvron et al., ICML 2021) for 150 epochs, as MoCo-v3 fine-tunes.

    Source: facebookresearch/moco-v3, README, and facebookresearch/deit, main.py. DeiT's ten epochs
    of cool-down are in its options but not in its loop, which is also an epoch late with each rate:
    not here. Its accuracy is that of the weights themselves; their moving average's stands beside.
    Cost: 150 epochs of ImageNet-1k are 192M images or 577M units, more than most pretrainings here.
    Expected: ViT-B on ImageNet-1k 83.2% from 300 epochs of MoCo-v3 (its README). Not measured here.
    """
    return FinetuneSettings(
        "deit",
        epochs=150,
        base_lr=2.5e-4,  # DeiT counts per 512 images: 5e-4
        min_lr=1e-5,
        start_lr=1e-6,
        moves_each_step=False,
        layer_decay=1.0,
        pool="token",
        head_std=0.02,
        repeats=3,
        ema_decay=0.99996,
    )


def mae() -> FinetuneSettings:
    """Return MAE's fine-tuning of ViT-B (He et al., CVPR 2022): layer-wise rates, 100 epochs.

    Source: facebookresearch/mae, FINETUNE.md, main_finetune.py, util/lr_sched.py. Its ViT-L takes
    epochs=50, layer_decay=0.75, drop_path=0.2 instead. Cost: 100 epochs of ImageNet-1k are 128M
    images or 384M units. Expected: ViT-B on ImageNet-1k 83.6% from 1600 epochs of MAE
    (FINETUNE.md). Not measured here.
    """
    return FinetuneSettings(
        "mae",
        epochs=100,
        base_lr=5e-4,
        min_lr=1e-6,
        start_lr=0.0,
        moves_each_step=True,
        layer_decay=0.65,
        pool="avg",
        head_std=2e-5,
        repeats=1,
        ema_decay=0.0,
    )


PRESETS: dict[str, Callable[[], FinetuneSettings]] = {"deit": deit, "mae": mae}


def finetune_settings(preset: str = "deit", **options: Any) -> FinetuneSettings:
    """Return the preset with the given options (not None).

    A shorter run warms up for at most a fifth of its epochs, unless warmup_epochs is given.
    """
    refuse_unknown_preset(preset, "finetune", PRESETS)
    settings = PRESETS[preset]()
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("epochs", 0) >= 1 and "warmup_epochs" not in given:
        given["warmup_epochs"] = min(settings.warmup_epochs, given["epochs"] // 5)
    return replace(settings, **given)


def _require(holds: bool, option: str, value: float, need: str) -> None:
    if not (holds and math.isfinite(value)):
        raise UserError(f"{option} {value:g} makes no sense.", f"Use a finite value {need}.")
