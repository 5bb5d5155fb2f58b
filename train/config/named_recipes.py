"""Recipes by name: whole runs on known data, what they cost and what may be expected of them.

A recipe is a function from a shard set to a configuration; options override single settings.
Compression is constant, p30 d0.5 unless said otherwise: so far no schedule that follows the
gradient's error was better (benchmarks/results/gradient_error_h200_202611.md), and --schedule takes
one. Units are of the paper's formula (see cost.py), all 240 px unless said otherwise.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config import recipes
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule, constant

VIT_BASE, VIT_TINY = "vit_base_patch16_224", "vit_tiny_patch16_224"
P30_HALVED = constant(Compression(30, 0.5))


@dataclass(frozen=True)
class DataSet:
    """What a recipe is made for: a name and the number of training images."""

    name: str
    images: int


IN1K = DataSet("ImageNet-1k", 1_281_167)
IN100 = DataSet("ImageNet-100", 126_689)
IN20 = DataSet("20 classes of ImageNet", 9_000)
TILES = DataSet("tiles of photographs", 1_008)


class Source(StrEnum):
    """Who measured what is expected of a recipe."""

    PAPER = "paper"
    ORIGINAL = "original code"
    HERE = "measured here"
    NOBODY = "not measured"


@dataclass(frozen=True)
class Expected:
    """Accuracies in per cent by protocol (nn1, knn20, linear, finetune), as `source` reports them.

    The paper's "NN", which it does not define, is read as nn1. differs: in what that run was
    another than the recipe.
    """

    source: Source
    accuracies: dict[str, float] = field(default_factory=dict)
    differs: str = ""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.1f}" for name, value in self.accuracies.items())
        where = f"{self.source}: {self.differs}" if self.differs else str(self.source)
        return f"{figures} ({where})" if figures else str(self.source)


class Make(Protocol):
    """data is the shard set's location."""

    __name__: str

    def __call__(self, data: str, **options: Any) -> TrainConfig: ...


@dataclass(frozen=True)
class Recipe:
    """A function with what is known of it."""

    make: Make
    data: DataSet
    expected: Expected

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def about(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.make) or ""

    @property
    def command(self) -> str:
        return f"accelssl train --recipe {self.name} --data SHARDS --out RUN"


NAMED: dict[str, Recipe] = {}


def find(name: str) -> Recipe:
    """UserError for an unknown name."""
    if name not in NAMED:
        raise UserError(f"There is no recipe named {name!r}.", f"Use one of {', '.join(NAMED)}.")
    return NAMED[name]


def images_bought(config: TrainConfig) -> int:
    """Images that the budget pays for, over all stages."""
    stages = [(s.until, config.batch * config.sample_cost(s)) for s in config.schedule.stages]
    return config.batch * sum(steps_bought(config.budget, stages))


def _named(data: DataSet, expected: Expected) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        NAMED[make.__name__] = Recipe(make, data, expected)
        return make

    return register


class _Method(Protocol):
    def __call__(
        self, model: str, data: str, budget: float, schedule: Schedule, **options: Any
    ) -> TrainConfig: ...


def _configured(
    method: _Method, data: str, settings: dict[str, Any], options: dict[str, Any]
) -> TrainConfig:
    """`settings` under `options`, both with model, budget and schedule among them."""
    chosen: dict[str, Any] = {"model": VIT_BASE, "schedule": P30_HALVED} | settings | options
    model, budget, schedule = (chosen.pop(name) for name in ("model", "budget", "schedule"))
    return method(model, data, budget, schedule, **chosen)


_IN100 = {"batch": 512, "base_lr": 5e-4, "warmup": 0.04}
"""The paper's changes there: batch, rate for 256 images, 40 of 1000 epochs of warm-up."""

_IN1K = {"batch": 1024, "warmup": 40 / 300}
_PLAIN = {"size": 224, "schedule": constant(UNCOMPRESSED)}


@_named(
    IN100,
    Expected(Source.PAPER, {"nn1": 71.2, "linear": 82.5}, "with its schedule of compression"),
)
def moco_in100(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-B/16 on ImageNet-100, for a fifth of 1000 uncompressed epochs.

    One pair an image, roles drawn for each. The paper's accelerated run of 104M units has another
    compression in each stage of the training, here it is one throughout.
    """
    return _configured(recipes.moco, data, {"budget": 104e6} | _IN100, options)


@_named(IN100, Expected(Source.PAPER, {"nn1": 66.7, "linear": 80.5}))
def moco_in100_p30(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-B/16 on ImageNet-100 with large patches alone, as the paper ran it.

    Patches of 30 px, none dropped, for 100M units: the run to compare with the paper's table of
    budgets. Its ablation has the same run at nn1 68.1, linear 80.6.
    """
    settings = {"budget": 100e6, "schedule": constant(Compression(30, 0.0))} | _IN100
    return _configured(recipes.moco, data, settings, options)


@_named(IN100, Expected(Source.PAPER, {"nn1": 70.0, "linear": 84.4, "finetune": 90.6}))
def moco_in100_uncompressed(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-B/16 on ImageNet-100 without compression: the paper's 1000 epochs.

    Crops of 224 px, 4 units an image, 520M in all (the paper counts 130,000 images an epoch). With
    --budget 104M, 200 epochs, the paper has nn1 58.1, linear 75.8.
    """
    return _configured(recipes.moco, data, {"budget": 520e6} | _PLAIN | _IN100, options)


@_named(IN100, Expected(Source.NOBODY))
def simclr_in100(data: str, **options: Any) -> TrainConfig:
    """SimCLR with ViT-B/16 on ImageNet-100: batch, rate and budget of the paper's MoCo-v3 there.

    The paper has no such run. Both views are compressed, 0.98 units an image.
    """
    return _configured(recipes.simclr, data, {"budget": 104e6} | _IN100, options)


@_named(
    IN1K,
    Expected(
        Source.PAPER,
        {"nn1": 60.7, "linear": 75.9, "finetune": 81.9},
        "with its schedule of compression",
    ),
)
def moco_in1k(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-B/16 on ImageNet-1k, for a quarter of 600 uncompressed epochs.

    The paper counts 1542M units, 8 an uncompressed image, where its own formula has 4 for one pair:
    these 771M are the same compute.
    """
    return _configured(recipes.moco, data, {"budget": 771e6} | _IN1K, options)


@_named(
    IN1K,
    Expected(Source.ORIGINAL, {"linear": 76.7, "finetune": 83.2}, "with a cosine learning rate"),
)
def moco_in1k_original(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-B/16 as its authors train it (facebookresearch/moco-v3), uncompressed.

    Symmetric loss, batch 4096, crops of 224 px, 300 epochs at 8 units an image. The rate falls as
    1 - t^2 here.
    """
    settings = {"budget": 300 * IN1K.images * 8.0, "symmetric": True} | _PLAIN | _IN1K
    return _configured(recipes.moco, data, settings | {"batch": 4096}, options)


@_named(
    IN1K,
    Expected(
        Source.PAPER,
        {"nn1": 50.7, "linear": 68.4, "finetune": 81.5},
        "with its schedule of compression",
    ),
)
def simclr_in1k(data: str, **options: Any) -> TrainConfig:
    """SimCLR with ViT-B/16 on ImageNet-1k, for 30% of the paper's uncompressed budget of 3075M."""
    return _configured(recipes.simclr, data, {"budget": 922e6} | _IN1K, options)


@_named(IN1K, Expected(Source.ORIGINAL, {"linear": 73.9}, "with a cosine learning rate"))
def simclr_in1k_original(data: str, **options: Any) -> TrainConfig:
    """SimCLR with ViT-B/16 as ronghanghu/moco_v3_tpu trains it, uncompressed.

    Batch 4096, crops of 224 px, 300 epochs at 6 units an image. The rate falls as 1 - t^2 here.
    """
    settings = {"budget": 300 * IN1K.images * 6.0} | _PLAIN | _IN1K | {"batch": 4096}
    return _configured(recipes.simclr, data, settings, options)


@_named(
    IN1K,
    Expected(
        Source.PAPER,
        {"nn1": 66.0, "linear": 77.4, "finetune": 82.0},
        "with its schedule of compression",
    ),
)
def dino_in1k(data: str, **options: Any) -> TrainConfig:
    """DINO with ViT-B/16 on ImageNet-1k, for 40% of the paper's uncompressed budget of 2846M.

    A large crop as query, another as key, six small ones that nothing compresses: of the 4.1 units
    of an image they are 3.3. How many the paper had is inferred from its budget.
    """
    settings = {"budget": 1138e6, "batch": 1024}
    return _configured(recipes.dino, data, settings, options)


@_named(
    IN1K,
    Expected(Source.ORIGINAL, {"knn20": 76.1, "linear": 78.2}, "with a cosine learning rate"),
)
def dino_in1k_original(data: str, **options: Any) -> TrainConfig:
    """DINO with ViT-B/16 as its authors train it (facebookresearch/dino), uncompressed.

    Two large crops of 224 px as queries and keys, ten small ones, batch 1024, 400 epochs at 13.5
    units an image. The rate falls as 1 - t^2 here.
    """
    units = 8 + 3 * 10 * 36 / 196
    settings = {"budget": 400 * IN1K.images * units, "mode": "official", "batch": 1024} | _PLAIN
    return _configured(recipes.dino, data, settings, options)


@_named(IN20, Expected(Source.HERE, {"nn1": 42.6, "knn20": 49.2}))
def simclr_small(data: str, **options: Any) -> TrainConfig:
    """SimCLR with ViT-tiny/16 for some thousand images: four minutes on an H100.

    Measured on 9,000 pictures of 192 px (benchmarks/results/same_budget_h100_202611.md).
    """
    return _configured(recipes.small_simclr, data, {"model": VIT_TINY, "budget": 1e6}, options)


@_named(IN20, Expected(Source.NOBODY))
def moco_small(data: str, **options: Any) -> TrainConfig:
    """MoCo-v3 with ViT-tiny/16 for some thousand images, set after simclr_small."""
    return _configured(recipes.small_moco, data, {"model": VIT_TINY, "budget": 1e6}, options)


@_named(IN20, Expected(Source.NOBODY))
def dino_small(data: str, **options: Any) -> TrainConfig:
    """DINO with ViT-tiny/16 for some thousand images, which takes it longer than the others."""
    return _configured(recipes.small_dino, data, {"model": VIT_TINY, "budget": 5e6}, options)


@_named(TILES, Expected(Source.HERE, {"nn1": 83.0, "knn20": 77.7}))
def simclr_demo(data: str, **options: Any) -> TrainConfig:
    """What `accelssl demo` trains: SimCLR with ViT-tiny/16, for some six minutes on two cores.

    Two stages, p48 d0.5 and p30 d0.5 (benchmarks/results/demo_cpu_202611.md).
    """
    chosen: dict[str, Any] = {"budget": 8e3, "schedule": recipes.DEMO_SCHEDULE} | options
    return recipes.demo(data, chosen.pop("budget"), chosen.pop("schedule"), **chosen)
