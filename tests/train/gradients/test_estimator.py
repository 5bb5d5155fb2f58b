"""The estimator on toy gradients with a known bias and variance, against plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from accelssl.train.gradients.analysis import Sketch
from accelssl.train.gradients.estimator import Estimate, Interval, Norms, Sums, estimate, excess

D, K, N, J = 40, 8, 32, 16
SEEDS = 300


class Toy:
    """n sub-batches whose means G and g of K images share those images' noise.

    Toys of one seed are cells of one stage: they have the same G. own: a cell's own noise, from
    own_seed if several cells are to differ in it.
    """

    def __init__(
        self,
        seed: int,
        n: int = N,
        groups: int = J,
        d: int = D,
        decay: float = 0.0,
        *,
        bias: float = 0.15,
        own: float = 0.8,
        own_seed: int | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        scales = np.linspace(0.2, 3.0, d) if not decay else 3.0 * np.arange(1, d + 1) ** -decay
        shift = np.zeros(d)
        shift[:4] = bias
        shared = rng.normal(size=(n, K, d)) * scales
        own_rng = rng if own_seed is None else np.random.default_rng([own_seed, seed])
        of_cell = own_rng.normal(size=(n, K, d)) * own * scales
        self.G = (0.3 + shared).mean(1)
        self.g = (0.3 + shift + 0.9 * shared + of_cell).mean(1)
        self.d = self.G - self.g
        self.bias2, self.norm2 = float((shift**2).sum()), 0.09 * d
        self.variance = float(((0.81 + own**2) * scales**2).sum())
        self.groups = np.array_split(np.arange(n), groups)

    def sums(self, sketch_values: int = D) -> Sums:
        sketch = Sketch(self.G.shape[1], torch.device("cpu"), sketch_values)
        sizes = np.array([len(rows) for rows in self.groups])
        return Sums(sizes, *(self._norms(x, sketch) for x in (self.G, self.g, self.d)))

    def _norms(self, x: Any, sketch: Sketch) -> Norms:
        squares = np.array([(x[rows] ** 2).sum() for rows in self.groups])
        sums = [torch.from_numpy(x[rows].sum(0)).float() for rows in self.groups]
        return Norms(
            squares, float((x.sum(0) ** 2).sum()), torch.stack([sketch(s) for s in sums]).numpy()
        )


def plain(toy: Toy, rows: Any, share: float) -> dict[str, float]:
    """By the definitions, over pairs and deviations."""
    G, g, d = toy.G[rows], toy.g[rows], toy.d[rows]
    n = len(d)

    def pairs(x: Any) -> float:
        return sum(float(x[b] @ x[c]) for b in range(n) for c in range(n) if b != c) / (n * n - n)

    variance = K * sum(float(((row - g.mean(0)) ** 2).sum()) for row in g) / (n - 1)
    found = {"bias2": pairs(d), "variance": variance, "norm2": pairs(G)}
    return found | {"ca_mse": found["bias2"] + share * variance}


def plain_interval(toy: Toy, name: str, share: float) -> tuple[float, float]:
    """Value and standard error of a jackknife that keeps every gradient."""
    everything = np.arange(len(toy.d))
    without = [plain(toy, np.setdiff1d(everything, rows), share)[name] for rows in toy.groups]
    deviations = np.array(without) - np.mean(without)
    groups = len(without)
    return plain(toy, everything, share)[name], float(
        np.sqrt((groups - 1) / groups * (deviations**2).sum())
    )


def half_width(interval: Interval, groups: int) -> float:
    return float((interval.high - interval.low) / 2 / stats.t.ppf(0.975, groups - 1))


@pytest.mark.parametrize("n", [32, 21])
def test_estimates_and_intervals_are_those_of_loops_over_all_gradients(n: int) -> None:
    """Where a sketch is as long as the vectors it is exact; groups need not be of one size."""
    toy, share = Toy(3, n, 8), 0.05
    found = estimate(toy.sums(), K, share)
    for name in ("bias2", "variance", "norm2", "ca_mse"):
        value, error = plain_interval(toy, name, share)
        interval: Interval = getattr(found, name)
        assert interval.value == pytest.approx(value, rel=1e-9)
        assert half_width(interval, 8) == pytest.approx(error, rel=1e-5)
    ratio = found.normalised["bias2"].value
    assert ratio == pytest.approx(found.bias2.value / found.norm2.value)


def test_the_paired_estimate_is_unbiased_and_the_others_are_not() -> None:
    """t tests of the mean over many seeds. The plug-in adds the variance of dbar; taking off the
    variances of Gbar and gbar forgets that they share their images."""
    toys = [Toy(seed) for seed in range(SEEDS)]
    found = [estimate(toy.sums(), K, 0.1) for toy in toys]
    true, plugged = toys[0], [estimate(toy.sums(), K, 0.1, "plugin").bias2.value for toy in toys]
    subtracted = [
        plug - (toy.G.var(0, ddof=1).sum() + toy.g.var(0, ddof=1).sum()) / N
        for plug, toy in zip(plugged, toys, strict=True)
    ]

    def p_value(values: Any, expected: float) -> float:
        return float(stats.ttest_1samp(values, expected).pvalue)

    assert p_value([each.bias2.value for each in found], true.bias2) > 0.01
    assert p_value([each.variance.value for each in found], true.variance) > 0.01
    assert p_value([each.norm2.value for each in found], true.norm2) > 0.01
    ca_mse = true.bias2 + 0.1 * true.variance
    assert p_value([each.ca_mse.value for each in found], ca_mse) > 0.01
    assert p_value(plugged, true.bias2) < 1e-9 and np.mean(plugged) > 2 * true.bias2
    assert p_value(subtracted, true.bias2) < 1e-9 and np.mean(subtracted) < 0


def test_intervals_hold_the_truth_at_least_as_often_as_they_say() -> None:
    """A jackknife of products of noise alone is sqrt(2) too wide (Efron and Stein, 1981)."""
    toys = [Toy(1000 + seed) for seed in range(SEEDS)]
    found = [estimate(toy.sums(), K, 0.1) for toy in toys]
    truth = {"bias2": toys[0].bias2, "variance": toys[0].variance, "norm2": toys[0].norm2}
    truth["ca_mse"] = truth["bias2"] + 0.1 * truth["variance"]
    for name, true in truth.items():
        intervals = [getattr(each, name) for each in found]
        held = np.mean([each.low <= true <= each.high for each in intervals])
        assert 0.91 < held <= 1.0, (name, held)
        spread = np.std([each.value for each in intervals])
        width = np.median([half_width(each, J) for each in intervals])
        assert 0.85 < width / spread < 1.1 * np.sqrt(2), name


def excess_of(one: Estimate, other: Estimate) -> Interval:
    return excess(one.ca_mse.value, one.without_J, other.ca_mse.value, other.without_J)


@pytest.mark.parametrize("n", [32, 21])
def test_what_two_cells_differ_by_has_the_interval_of_loops_over_all_gradients(n: int) -> None:
    pair = Toy(3, n, 8, own_seed=1), Toy(3, n, 8, bias=0.5, own_seed=2)
    found = excess_of(*(estimate(toy.sums(), K, 0.05) for toy in pair))
    everything = np.arange(n)
    rests = [everything, *(np.setdiff1d(everything, rows) for rows in pair[0].groups)]
    values = [
        plain(pair[0], rest, 0.05)["ca_mse"] - plain(pair[1], rest, 0.05)["ca_mse"]
        for rest in rests
    ]
    without = np.array(values[1:])
    error = np.sqrt(7 / 8 * ((without - without.mean()) ** 2).sum())
    assert found.value == pytest.approx(values[0], rel=1e-9)
    assert half_width(found, 8) == pytest.approx(error, rel=1e-5)


def test_cells_that_share_their_noise_are_told_apart_though_their_intervals_overlap() -> None:
    """Equal ones are still told apart no more often than intervals may fail."""
    told, overlapping, false, seeds = 0, 0, 0, 100
    for seed in range(seeds):
        good, bad, as_good = (
            estimate(Toy(2000 + seed, bias=bias, own=0.2, own_seed=cell).sums(), K, 0.1)
            for cell, bias in enumerate((0.15, 0.6, 0.15), 1)
        )
        told += excess_of(bad, good).low > 0
        overlapping += bad.ca_mse.overlaps(good.ca_mse)
        false += excess_of(as_good, good).low > 0
    assert overlapping > 0.9 * seeds
    assert told > 0.9 * seeds
    assert false < 0.1 * seeds


def test_without_any_bias_the_estimate_scatters_about_nothing() -> None:
    rng = np.random.default_rng(0)
    values = []
    for seed in range(SEEDS):
        toy = Toy(seed)
        toy.d = rng.normal(size=toy.d.shape)
        toy.g = toy.G - toy.d
        values.append(estimate(toy.sums(), K, 0.1).bias2.value)
    assert min(values) < 0 < max(values)
    assert float(stats.ttest_1samp(values, 0.0).pvalue) > 0.01


@pytest.mark.parametrize(("decay", "most"), [(0.5, 1.1), (0.0, 1.9)])
def test_sketched_intervals_are_close_to_those_of_the_plain_jackknife(
    decay: float, most: float
) -> None:
    """Many more parameters than values of the sketch; the estimates themselves stay exact. Noise
    of r directions widens them by at most sqrt(1 + r / M): 52 of 6000 here, then 3300."""
    ratios = []
    for seed in range(20):
        toy = Toy(seed, 16, 16, 6000, decay)
        exact, sketched = (estimate(toy.sums(size), K, 0.1) for size in (6000, 1499))
        assert sketched.bias2.value == exact.bias2.value
        ratios.append(half_width(sketched.bias2, 16) / half_width(exact.bias2, 16))
    assert 0.95 < np.mean(ratios) < most


def test_a_sketch_keeps_products_without_bias() -> None:
    generator = torch.Generator().manual_seed(1)
    sketch = Sketch(5000, torch.device("cpu"), 499)
    errors = []
    for _ in range(400):
        x, y = torch.randn(2, 5000, generator=generator)
        errors.append(float(sketch(x) @ sketch(y)) - float(x @ y))
    deviation = 5000 / np.sqrt(499)
    assert float(stats.ttest_1samp(errors, 0.0).pvalue) > 0.01
    assert np.std(errors) == pytest.approx(deviation, rel=0.15)


def test_a_gradient_of_nothing_but_noise_is_not_divided_by() -> None:
    toy = Toy(0)
    toy.G = toy.G - toy.G.mean(0)
    found = estimate(toy.sums(), K, 0.1)
    assert found.norm2.value < 0 and np.isnan(found.normalised["bias2"].value)
