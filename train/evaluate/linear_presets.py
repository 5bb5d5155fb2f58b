"""Published settings of linear probes, as data. No torch."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from accelssl.errors import UserError

CENTRAL, FRESH = "central", "fresh"
BASE_WIDTH = 768
MOST_CROPS = 1000


@dataclass(frozen=True)
class LinearSettings:
    """Settings of a linear classifier on frozen features, trained by SGD with momentum, no weight
    decay.

    rates: learning rates per 256 images, scaled by batch / 256. Each rate has its own head; all
    heads train on the same features. rate: the protocol's default. The rate follows a half-cosine
    to 0, constant within an epoch. normalises: a BatchNorm without scale and shift before the head.

    blocks: number of last blocks whose CLS tokens are used; None uses the network's own features.
    averages_patches: append the mean of the last block's patch tokens.

    crops: "central" uses the central crop of each picture, as in validation, with features computed
    once. A number uses that many random crops of each picture (area .08 to 1, half of them
    flipped), computed once; an epoch has one of each in turn. "fresh" uses new random crops in
    every epoch, as the protocols do; an epoch then costs a pass of the network.
    """

    name: str
    rate: float
    rates: tuple[float, ...]
    epochs: int
    batch: int = 1024
    momentum: float = 0.9
    normalises: bool = False
    blocks: int | None = None
    averages_patches: bool = False
    crops: str = CENTRAL
    resets_last_norm: bool = False

    def __post_init__(self) -> None:
        for rate in self.rates:
            if not (math.isfinite(rate) and rate > 0):
                raise UserError(f"A rate of {rate:g} makes no sense.", "Use rates above 0.")
        if not self.rates or len(set(self.rates)) < len(self.rates):
            raise UserError(
                "--lrs names a rate twice, or none.", "Use each rate once, for example 0.1,1,10."
            )
        if self.epochs < 1:
            raise UserError(f"--epochs {self.epochs} makes no sense.", "Use 1 or more.")
        if self.batch < 2:
            raise UserError(f"--batch {self.batch} makes no sense.", "Use 2 or more.")
        if self.crops not in (CENTRAL, FRESH) and not self.cached_crops:
            raise UserError(
                f"--crops {self.crops!r} is not known.",
                f"Use {CENTRAL}, {FRESH}, or a number of random crops from 1 to {MOST_CROPS}.",
            )

    @property
    def cached_crops(self) -> int:
        """Return the number of kept random crops of each picture; 0 for none."""
        digits = self.crops.isascii() and self.crops.isdigit() and len(self.crops) < 9
        return int(self.crops) if digits and int(self.crops) <= MOST_CROPS else 0

    def learning_rate(self, epoch: int) -> float:
        """Return the share of the peak rate in this epoch (from 0): a half-cosine without
        warm-up."""
        return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))


def moco() -> LinearSettings:
    """Return MoCo-v3's probe: rate 3 for 256 images, 90 epochs, batch 1024, the network's own
    feature.

    Head from N(0, .01), bias 0 (facebookresearch/moco-v3, main_lincls.py and CONFIG.md). The
    original interpolates validation pictures linearly; here they are bicubic in all protocols. With
    fresh crops it costs 90 forward passes of the training set. ViT-B/16 after 300 epochs: 76.7% on
    ImageNet-1k.
    """
    return LinearSettings("moco", 3.0, (0.03, 0.1, 0.3, 1.0, 3.0, 10.0), epochs=90)


def dino(width: int) -> LinearSettings:
    """Return DINO's probe: rate .001 for 256 images, 100 epochs, batch 1024.

    Networks narrower than ViT-B: the CLS tokens of the last four blocks, one after the other;
    others: the last one's CLS token and the mean of its patch tokens (facebookresearch/dino,
    eval_linear.py and README). Bicubic. ViT-B/16 after 400 epochs: 78.2% on ImageNet-1k.
    """
    rates = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    settings = LinearSettings("dino", 1e-3, rates, epochs=100)
    if width < BASE_WIDTH:
        return replace(settings, blocks=4)
    return replace(settings, blocks=1, averages_patches=True)


def mae() -> LinearSettings:
    """Return MAE's probe: a BatchNorm before the head, rate .1 for 256 images, 90 epochs.

    The settings are those of lightly (benchmarks/imagenet/vitb16/linear_eval.py): SGD. The original
    (facebookresearch/mae, FINETUNE.md) has LARS, ten epochs of warm-up and a batch of 16,384.
    """
    rates = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return LinearSettings("mae", 0.1, rates, epochs=90, normalises=True)


PRESETS = ("moco", "dino", "mae")


def linear_preset(name: str, width: int = BASE_WIDTH) -> LinearSettings:
    """Return the preset of this name for features of this width. Raise UserError for an unknown
    name."""
    refuse_unknown_preset(name, "linear", PRESETS)
    if name == "dino":
        return dino(width)
    return moco() if name == "moco" else mae()


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse 0.1,1,10 as numbers. Raise UserError for other text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--lrs {text!r} are no numbers.", "Separate rates by commas, for example 0.1,1,10."
        ) from None


def refuse_unknown_preset(preset: str, protocol: str, known: Collection[str]) -> None:
    """Raise UserError, naming the protocol's presets, unless `preset` is one of them."""
    if preset not in known:
        raise UserError(
            f"The preset {preset!r} of --protocol {protocol} is not known.",
            f"Use --preset {' or '.join(known)}.",
        )
