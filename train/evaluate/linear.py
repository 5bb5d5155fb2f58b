"""Linear accuracy: classifiers on frozen features of the train split, evaluated on the val
split."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.pipeline.loader import LoaderOptions
from accelssl.progress_lines import told
from accelssl.shards.shard_set import ShardSet
from accelssl.train.evaluate.features import (
    Extract,
    Labelled,
    features,
    features_of_random_crops,
    joined,
)
from accelssl.train.evaluate.linear_presets import FRESH, LinearSettings
from accelssl.train.evaluate.probe import Counts, Probe

Epoch = Iterable[Labelled]


def linear_scores(
    shards: ShardSet,
    extracts: dict[str, Extract],
    settings: LinearSettings,
    options: LoaderOptions,
    show: bool = False,
) -> dict[str, Any]:
    """Train a linear probe on each feature set and return its accuracy by name.

    The result {name: {"top1", "top5" in per cent, "right1", "right5" of "of" pictures, "rate",
    "diverged", "rates"}} has the figures of the best learning rate, and of all in "rates". The best
    rate is selected on the validation set (optimistic), as is usual. A rate whose logits are not
    finite has diverged and scores 0. Raise UserError if all rates diverge.
    """
    val, labels_N = features(shards.split("val"), extracts, options, show)
    classes = len(shards.classes)
    batch = min(settings.batch, len(shards.split("train")))
    settings = replace(settings, batch=batch)
    probes = {
        name: Probe(found.shape[1], classes, settings, options.seed).to(options.device)
        for name, found in val.items()
    }
    fit(probes, _epochs(shards, extracts, settings, options, show), settings.epochs, show)
    scores: dict[str, Any] = {
        name: _scores(name, settings, probe.right(val[name], labels_N), len(labels_N))
        for name, probe in probes.items()
    }
    return scores | {
        "preset": settings.name,
        "crops": settings.crops,
        "epochs": settings.epochs,
        "batch": batch,
        "preset_rate": settings.rate,
        "resets_last_norm": settings.resets_last_norm,
        "classes": classes,
        "train": len(shards.split("train")),
        "val": len(labels_N),
    }


def fit(probes: dict[str, Probe], epochs: Iterable[Epoch], count: int, show: bool = False) -> None:
    """Train each probe on its features in the batches of `count` epochs."""
    shown = told(epochs, "linear probes", count, show)
    for epoch, batches in enumerate(shown):
        for found, labels_N in batches:
            for name, probe in probes.items():
                probe.train_step(found[name], labels_N, epoch)


def shuffled(
    caches: Sequence[Labelled], batch: int, epochs: int, seed: int
) -> Iterator[Iterator[Labelled]]:
    """Yield epochs of kept features, each of the next of `caches`, in a new order.

    The last batch of an epoch may be smaller, but has at least 2 samples.
    """
    generator = torch.Generator().manual_seed(seed)

    def batches(cache: Labelled) -> Iterator[Labelled]:
        found, labels_N = cache
        order_N = torch.randperm(len(labels_N), generator=generator).to(labels_N.device)
        for chosen in torch.split(order_N, batch):
            if (
                len(chosen) > 1
            ):  # a BatchNorm divides by the variance, which one picture does not have
                yield {name: of_all[chosen] for name, of_all in found.items()}, labels_N[chosen]

    for epoch in range(epochs):
        yield batches(caches[epoch % len(caches)])


def _epochs(
    shards: ShardSet,
    extracts: dict[str, Extract],
    settings: LinearSettings,
    options: LoaderOptions,
    show: bool,
) -> Iterator[Iterator[Labelled]]:
    train, crops = shards.split("train"), settings.cached_crops
    if settings.crops == FRESH:
        options = replace(options, batch=settings.batch)
        return features_of_random_crops(train, extracts, options, settings.epochs)
    if crops:
        passes = told(
            features_of_random_crops(train, extracts, options, crops),
            f"features of {crops} crops of train",
            crops,
            show,
        )
        caches = [joined(list(batches)) for batches in passes]
    else:
        caches = [features(train, extracts, options, show)]
    return shuffled(caches, settings.batch, settings.epochs, options.seed)


def _scores(name: str, settings: LinearSettings, counts: Counts, total: int) -> dict[str, Any]:
    if all(counts.diverged):
        raise UserError(
            f"The linear probe on {name!r} diverged at every rate of "
            f"{', '.join(f'{rate:g}' for rate in settings.rates)}.",
            f"Give lower ones: --lrs {min(settings.rates) / 100:g},{min(settings.rates) / 10:g}.",
        )
    rates = [
        {
            "rate": rate,
            "top1": 100 * first / total,
            "top5": 100 * fifth / total,
            "right1": first,
            "right5": fifth,
            "diverged": diverged,
        }
        for rate, first, fifth, diverged in zip(settings.rates, *counts, strict=True)
    ]
    converged = [found for found in rates if not found["diverged"]]
    best = max(converged, key=lambda found: (found["right1"], found["right5"]))
    return best | {"of": total, "rates": rates}
