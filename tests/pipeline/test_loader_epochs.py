"""Epochs over ranks: every sample once, others left over each time, a new shuffle each time."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from accelssl.pipeline.draws.order import Plan, Position, batches_per_epoch, epoch_order, plans

WORLDS = (1, 2, 3, 8)


def drawn_settings() -> list[tuple[int, int, int, int]]:
    """Return (samples, batch, world, seed): random, and with epochs that omit few samples."""
    rng = np.random.default_rng(7)
    settings = []
    for world in WORLDS:
        for _ in range(12):
            batch = int(rng.integers(1, 9))
            samples = int(rng.integers(batch * world, 40 * batch * world))
            settings.append((samples, batch, world, int(rng.integers(2**32))))
        whole = 5 * 4 * world
        settings += [(whole + tail, 4, world, 0) for tail in (-1, 0, 1)]
        settings.append((4 * world, 4, world, 1))
    return settings


def ranks_of(
    samples: int, batch: int, world: int, seed: int, start: Position, count: int
) -> list[list[Plan]]:
    """Return the first `count` plans of every rank."""
    return [
        list(itertools.islice(plans(samples, batch, seed, rank, world, start), count))
        for rank in range(world)
    ]


def samples_by_rank(order: list[int], batch: int, world: int) -> list[list[list[int]]]:
    """Return the expected samples [rank][k], assigned one sample at a time."""
    by_rank: list[list[list[int]]] = [[] for _ in range(world)]
    left = iter(order)
    while True:
        step = [[s for _, s in zip(range(batch), left, strict=False)] for _ in range(world)]
        if len(step[-1]) < batch:
            return by_rank
        for batches, samples in zip(by_rank, step, strict=True):
            batches.append(samples)


@pytest.mark.parametrize(("samples", "batch", "world", "seed"), drawn_settings())
def test_ranks_take_each_epochs_order_batch_by_batch(
    samples: int, batch: int, world: int, seed: int
) -> None:
    full = batches_per_epoch(samples, batch, world)
    ranks = ranks_of(samples, batch, world, seed, Position(), 3 * full)
    for epoch in range(3):
        order = epoch_order(samples, seed, epoch).tolist()
        assert sorted(order) == list(range(samples))
        expected = samples_by_rank(order, batch, world)
        visits: Counter[int] = Counter()
        for rank, batches in zip(ranks, expected, strict=True):
            planned = rank[epoch * full : (epoch + 1) * full]
            assert [plan.samples_N.tolist() for plan in planned] == batches
            assert {plan.epoch for plan in planned} == {epoch}
            assert planned[-1].after == Position(epoch + 1, 0)
            for plan in planned:
                visits.update(plan.samples_N.tolist())
        assert set(visits.values()) == {1}
        assert samples - len(visits) == samples % (batch * world)


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_stopped_after_any_batch_goes_on_as_if_it_had_not_been(world: int) -> None:
    samples, batch = 7 * 3 * world + 2, 3
    for rank, whole in enumerate(ranks_of(samples, batch, world, 11, Position(), 21)):
        for done in range(1, 21):
            rest = plans(samples, batch, 11, rank, world, whole[done - 1].after)
            for expected, plan in zip(whole[done:], rest, strict=False):
                assert plan.samples_N.tolist() == expected.samples_N.tolist()
                assert (plan.epoch, plan.after) == (expected.epoch, expected.after)


def test_one_rank_and_many_see_the_same_images_in_the_same_step() -> None:
    """A step has the same samples for every number of ranks."""
    for world in WORLDS:
        alone = ranks_of(200, 24, 1, 3, Position(), 16)[0]
        ranks = ranks_of(200, 24 // world, world, 3, Position(), 16)
        for k, plan in enumerate(alone):
            together = np.concatenate([rank[k].samples_N for rank in ranks])
            assert together.tolist() == plan.samples_N.tolist()


def test_who_is_left_over_is_drawn_anew_each_epoch() -> None:
    """Counts pass a chi-square test for a binomial, and no two epochs omit the same samples."""
    samples, batch, epochs = 400, 96, 600
    left = samples % batch
    left_out = [frozenset(epoch_order(samples, 0, e)[-left:].tolist()) for e in range(epochs)]
    assert len(set(left_out)) == epochs
    counts = np.zeros(samples)
    for out in left_out:
        counts[list(out)] += 1
    expected, spread = epochs * left / samples, epochs * left / samples * (1 - left / samples)
    statistic = ((counts - expected) ** 2 / spread).sum()
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], df=samples - 1)
    assert low < statistic < high


def positions(seed: int, epoch: int, samples: int) -> np.ndarray:
    return np.argsort(epoch_order(samples, seed, epoch))


def test_where_a_sample_comes_says_nothing_about_where_it_comes_next() -> None:
    """Rank correlations of all pairs of 30 epochs, and of file order, are those of random shuffles.

    They have mean 0 and standard deviation 1 / sqrt(n - 1).
    """
    samples, epochs = 3000, 30
    places = np.stack(
        [np.arange(samples), *(positions(5, epoch, samples) for epoch in range(epochs))]
    )
    correlations = np.corrcoef(places)[np.triu_indices(epochs + 1, 1)]
    scaled = correlations * np.sqrt(samples - 1)
    assert np.abs(scaled).max() < stats.norm.ppf(1 - 1e-4 / len(scaled))
    assert stats.kstest(scaled, "norm").pvalue > 1e-3


def test_seeds_shuffle_independently_in_all_their_epochs() -> None:
    """Epoch 1 of seed 0 and epoch 0 of seed 1 are compared as well."""
    seeds = (0, 1, 2, 3, 2**31, 2**32 - 1)
    places = np.stack([positions(seed, epoch, 3000) for seed in seeds for epoch in range(5)])
    scaled = np.corrcoef(places)[np.triu_indices(len(places), 1)] * np.sqrt(2999)
    assert np.abs(scaled).max() < stats.norm.ppf(1 - 1e-4 / len(scaled))


def test_neighbours_of_an_epoch_are_not_neighbours_of_the_next() -> None:
    """On average 2 of n - 1 adjacent pairs stay adjacent in another shuffle (Poisson)."""
    samples, epochs = 2000, 200
    stayed = 0
    for epoch in range(epochs):
        order, places = epoch_order(samples, 9, epoch), positions(9, epoch + 1, samples)
        stayed += int((np.abs(np.diff(places[order])) == 1).sum())
    low, high = stats.poisson.ppf([1e-4, 1 - 1e-4], 2 * epochs)
    assert low <= stayed <= high


def test_every_sample_comes_anywhere_in_an_epoch_equally_often() -> None:
    """A chi-square test counts (sample, tenth of the epoch) over 500 epochs."""
    samples, epochs, tenths = 200, 500, 10
    counts = np.zeros((samples, tenths))
    for epoch in range(epochs):
        counts[np.arange(samples), positions(2, epoch, samples) * tenths // samples] += 1
    expected = epochs / tenths
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Each epoch fixes the sums over samples, and each sample the sum over tenths.
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], df=(samples - 1) * (tenths - 1))
    assert low < statistic < high
