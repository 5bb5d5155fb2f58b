"""Heads side by side are each what it would be alone, and what scikit-learn finds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from accelssl.errors import UserError
from accelssl.train.evaluate.features import Labelled
from accelssl.train.evaluate.linear import fit, shuffled
from accelssl.train.evaluate.linear_presets import (
    LinearSettings,
    dino,
    linear_preset,
    mae,
    moco,
    parse_rates,
)
from accelssl.train.evaluate.probe import Probe, top1_top5

SETTINGS = LinearSettings("test", 1.0, (0.02, 0.5, 4.0), epochs=6, batch=64)


def clouds(count: int, seed: int, classes: int = 5, width: int = 16) -> Labelled:
    """Gaussian classes that overlap, so that no head separates them."""
    centres = np.random.default_rng(9).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = 0.6 * centres[labels] + rng.normal(size=(count, width)) + 0.5
    return {"x": torch.from_numpy(features)}, torch.from_numpy(labels)


def trained(settings: LinearSettings, cache: Labelled, seed: int = 0) -> Probe:
    found, _ = cache
    probe = Probe(found["x"].shape[1], 5, settings, seed).double()
    epochs = shuffled([cache], settings.batch, settings.epochs, seed)
    fit({"x": probe}, epochs, settings.epochs)
    return probe


def test_accuracy_is_that_of_logistic_regression() -> None:
    train, (found, labels) = clouds(3000, 1), clouds(2000, 2)
    regression = LogisticRegression(C=1e6, max_iter=2000).fit(train[0]["x"].numpy(), train[1])
    expected = 100 * regression.score(found["x"].numpy(), labels)
    settings = replace(SETTINGS, rates=(0.1,), epochs=60, batch=256)
    for normalises in (False, True):
        probe = trained(replace(settings, normalises=normalises), train)
        right1, _, _ = probe.right(found["x"], labels)
        assert 40 < expected < 90
        assert 100 * right1[0] / len(labels) == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("normalises", [False, True])
def test_rates_side_by_side_give_what_each_gives_alone(normalises: bool) -> None:
    settings, cache = replace(SETTINGS, normalises=normalises), clouds(300, 3)
    found, _ = cache
    together = trained(settings, cache).eval()(found["x"])
    for head, rate in enumerate(settings.rates):
        alone = trained(replace(settings, rates=(rate,)), cache).eval()(found["x"])
        torch.testing.assert_close(together[:, head], alone[:, 0], rtol=1e-9, atol=1e-9)


def test_a_head_is_a_linear_layer_trained_by_torchs_sgd_and_cosine() -> None:
    cache = clouds(200, 4)
    pictures = cache[0]["x"]
    probe = Probe(16, 5, SETTINGS, seed=7).double()
    linear = torch.nn.Linear(16, 5).double()
    with torch.no_grad():
        linear.weight.copy_(probe.weight[5:10])
        linear.bias.zero_()
    assert 0.008 < float(linear.weight.std().detach()) < 0.012
    rate = SETTINGS.rates[1] * SETTINGS.batch / 256
    optimizer = torch.optim.SGD(linear.parameters(), lr=rate, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SETTINGS.epochs)
    for batches in shuffled([cache], SETTINGS.batch, SETTINGS.epochs, 0):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(linear(x["x"]), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        cosine.step()
    fit({"x": probe}, shuffled([cache], SETTINGS.batch, SETTINGS.epochs, 0), SETTINGS.epochs)
    torch.testing.assert_close(probe(pictures)[:, 1], linear(pictures), rtol=1e-9, atol=1e-9)


def test_a_head_that_diverges_leaves_the_others_alone() -> None:
    settings, cache = replace(SETTINGS, rates=(0.5, 1e308)), clouds(300, 5)
    logits = trained(settings, cache).eval()(cache[0]["x"])
    assert not logits[:, 1].isfinite().all()
    alone = trained(replace(settings, rates=(0.5,)), cache).eval()(cache[0]["x"])
    torch.testing.assert_close(logits[:, 0], alone[:, 0], rtol=1e-9, atol=1e-9)


def test_a_head_that_diverged_has_nothing_right() -> None:
    """All labels are 0, the index that topk gives first where all logits are NaN."""
    (found, labels), settings = clouds(300, 5), replace(SETTINGS, rates=(0.5, 1e308))
    probe = trained(settings, (found, labels))
    counts = probe.right(found["x"], torch.zeros_like(labels))
    assert counts.diverged == [False, True]
    assert counts.right1[0] > 0 and counts.right5[0] == 300
    assert counts.right1[1] == counts.right5[1] == 0


def test_normalised_features_are_those_of_torchs_batch_norm() -> None:
    found, labels = clouds(64, 6)
    probe = Probe(16, 5, replace(SETTINGS, normalises=True), seed=0).double()
    names = [name for name, _ in probe.named_parameters()]
    assert names == ["weight", "bias"]  # no scale, no shift
    before = probe.weight.detach().clone()
    probe.train_step(found["x"], labels, epoch=SETTINGS.epochs)  # at a rate of 0
    torch.testing.assert_close(probe.weight.detach(), before)
    x = found["x"]
    mean, variance = x.mean(0) * 0.1, x.var(0) * 0.1 + 0.9  # of one batch, with momentum .1
    expected = (x - mean) / (variance + 1e-6).sqrt() @ before[:5].T
    torch.testing.assert_close(probe.eval()(x)[:, 0], expected, rtol=1e-9, atol=1e-9)


def test_counts_of_one_and_five_are_numpys() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(500, 3, 11)).astype(np.float32), rng.integers(0, 11, 500)
    first, fifth = top1_top5(torch.from_numpy(logits), torch.from_numpy(labels))
    order = np.argsort(-logits, axis=2)
    hits = order == labels[:, None, None]
    assert first.tolist() == hits[..., 0].sum(0).tolist()
    assert fifth.tolist() == hits[..., :5].any(2).sum(0).tolist()
    assert (first < fifth).all()
    few = torch.from_numpy(logits[..., :4]), torch.from_numpy(labels % 4)
    assert top1_top5(*few)[1].tolist() == [500] * 3  # of four classes, all are among five


def test_every_picture_is_in_an_epoch_once_and_crops_take_turns() -> None:
    caches = [({"x": torch.arange(10.0)[:, None] + 100 * k}, torch.arange(10)) for k in range(2)]
    seen: list[list[int]] = []
    for batches in shuffled(caches, 4, 4, seed=1):
        epoch = [(found["x"], labels) for found, labels in batches]
        assert [len(labels) for _, labels in epoch] == [4, 4, 2]
        x, y = (torch.cat(part) for part in zip(*epoch, strict=True))
        assert sorted(y.tolist()) == list(range(10))
        assert set((x[:, 0] - y).tolist()) == {100.0 * (len(seen) % 2)}
        seen.append(y.tolist())
    assert len({tuple(order) for order in seen}) == 4


def test_the_rate_falls_as_a_half_cosine_and_stays_within_an_epoch() -> None:
    settings = moco()
    rates = [settings.learning_rate(epoch) for epoch in range(90)]
    assert rates[0] == 1 and rates[45] == pytest.approx(0.5)
    expected = [(1 + math.cos(math.pi * e / 90)) / 2 for e in range(90)]
    assert rates == pytest.approx(expected)


def test_the_presets_are_the_originals() -> None:
    for settings in (moco(), dino(384), dino(768), mae()):
        assert settings.rate in settings.rates and settings.momentum == 0.9
        assert settings.rates == tuple(sorted(settings.rates))
    assert (moco().rate * moco().batch / 256, moco().epochs, moco().blocks) == (12, 90, None)
    small, base = dino(384), dino(768)
    assert (small.rate, small.epochs, small.blocks, small.averages_patches) == (1e-3, 100, 4, False)
    assert (base.rate, base.epochs, base.blocks, base.averages_patches) == (1e-3, 100, 1, True)
    assert (mae().rate, mae().epochs, mae().normalises) == (0.1, 90, True)
    assert not moco().normalises and linear_preset("dino", 192) == dino(192)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rates": (0.1, -1.0)}, "rate of -1"),
        ({"rates": (float("inf"),)}, "rate of inf"),
        ({"rates": (1.0, 1.0)}, "twice"),
        ({"epochs": 0}, "--epochs 0"),
        ({"batch": 1}, "--batch 1"),
        ({"crops": "0"}, "--crops '0'"),
        ({"crops": "-3"}, "--crops '-3'"),
        ({"crops": "1001"}, "--crops '1001'"),
        ({"crops": "many"}, "--crops 'many'"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        replace(SETTINGS, **changes)


def test_rates_are_numbers_between_commas() -> None:
    assert parse_rates("0.1,1,10") == (0.1, 1.0, 10.0)
    with pytest.raises(UserError, match=r"'0\.1;1'"):
        parse_rates("0.1;1")
    with pytest.raises(UserError, match="preset 'vicreg'"):
        linear_preset("vicreg", 384)
