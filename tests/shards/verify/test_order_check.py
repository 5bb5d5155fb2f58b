"""The judge of orders: exact numbers, no false alarm on fair shuffles, no bad order missed."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats

from accelssl.shards.verify.order_check import drift_sd, judge_order, neighbours_of_shuffles

Labels = npt.NDArray[np.int64]
Generator = np.random.Generator


@pytest.mark.parametrize(
    "labels",
    [(0, 0), (0, 1), (0, 0, 1), (0, 1, 2, 3, 4), (0, 0, 1, 1, 2), (0, 0, 0, 0, 1, 1, 2, 2)],
)
def test_mean_and_deviation_of_neighbours_are_those_over_all_orders(
    labels: tuple[int, ...],
) -> None:
    orders = np.array(list(itertools.permutations(labels)))
    same = (orders[:, 1:] == orders[:, :-1]).sum(axis=1)
    found = neighbours_of_shuffles(np.bincount(labels))
    assert found == pytest.approx((same.mean(), same.std()), abs=1e-7)


@pytest.mark.parametrize(("count", "classes"), [(60, 6), (500, 40)])
def test_the_drift_is_the_normal_variable_of_the_kruskal_wallis_test(
    count: int, classes: int
) -> None:
    for seed in range(20):
        labels = np.random.default_rng(seed).permutation(np.arange(count) % classes)
        places = [np.flatnonzero(labels == label) for label in range(classes)]
        expected = scipy.stats.norm.isf(scipy.stats.kruskal(*places).pvalue)
        assert drift_sd(labels, np.bincount(labels)) == pytest.approx(expected, abs=0.05)


def test_only_which_labels_are_equal_matters() -> None:
    labels = np.random.default_rng(1).integers(0, 5, 200)
    renamed = np.array([70_000, -3, 12, 5, 900])[labels]
    assert judge_order(labels) == judge_order(renamed)


@pytest.mark.parametrize(
    ("count", "classes"),
    [(1, 1), (2, 2), (5, 2), (20, 4), (60, 6), (60, 60), (300, 1), (500, 10), (2000, 2)],
)
def test_fair_shuffles_of_hundreds_of_seeds_raise_no_alarm(count: int, classes: int) -> None:
    parts = np.arange(0, count, -(-count // 4))
    for seed in range(200):
        rng = np.random.default_rng([seed, count, classes])
        assert judge_order(rng.permutation(np.arange(count) % classes), parts).is_fair


def test_unequal_classes_and_left_out_samples_raise_no_alarm() -> None:
    # What a quarantine takes from a shuffle depends on classes, never on places.
    rng = np.random.default_rng(8)
    labels = np.repeat(np.arange(12), np.arange(12) ** 2 + 1)
    for _ in range(200):
        order = rng.permutation(labels)
        kept = order[~((order == 11) & (rng.random(len(order)) < 0.7))]
        assert judge_order(kept, (0, 100, 300)).is_fair


def through_buffer(labels: Labels, size: int, rng: Generator) -> Labels:
    """What a reader with a shuffle buffer makes of an order."""
    buffer, out = labels[:size].tolist(), []
    for label in labels[size:].tolist():
        at = int(rng.integers(size))
        out.append(buffer[at])
        buffer[at] = label
    return np.array(out + rng.permutation(buffer).tolist())


def by_class(count: int, classes: int) -> Labels:
    return np.sort(np.arange(count) % classes)


def in_parts(labels: Labels, size: int, rng: Generator) -> Labels:
    """Parts shuffled inside and among each other; their content stays as it was."""
    parts = [rng.permutation(labels[at : at + size]) for at in range(0, len(labels), size)]
    return np.concatenate([parts[n] for n in rng.permutation(len(parts))])


def drifting(strength: float, rng: Generator) -> Labels:
    """From a little more of the first classes to a little more of the last ones."""
    labels = np.arange(10_000) % 50
    return labels[np.argsort(rng.random(10_000) + strength * labels / 50)]


BAD_ORDERS: dict[str, Callable[[Generator], Labels]] = {
    "by class, a small set": lambda rng: by_class(60, 6),
    "by class": lambda rng: by_class(2000, 10),
    "by class, two classes": lambda rng: by_class(200, 2),
    "by class, classes shuffled": lambda rng: np.repeat(rng.permutation(100), 20),
    "small blocks of a class": lambda rng: np.repeat(rng.permutation(1000) % 50, 10),
    "pairs": lambda rng: np.repeat(rng.permutation(1000) % 50, 2),
    "each shard from its own classes": lambda rng: in_parts(by_class(5000, 50), 250, rng),
    "each shard from half of the classes": lambda rng: in_parts(by_class(5000, 50), 2500, rng),
    "a buffer of a class": lambda rng: through_buffer(by_class(2000, 20), 100, rng),
    "a buffer of ten classes": lambda rng: through_buffer(by_class(5000, 50), 1000, rng),
    "a buffer of half the set": lambda rng: through_buffer(by_class(5000, 50), 2500, rng),
    "a buffer of half a small set": lambda rng: through_buffer(by_class(500, 10), 250, rng),
    "a trend over the whole set": lambda rng: drifting(0.3, rng),
    "classes in turn": lambda rng: np.arange(1000) % 20,
    "classes in turn, shuffled": lambda rng: np.concatenate(
        [rng.permutation(20) for _ in range(100)]
    ),
}


@pytest.mark.parametrize("order", BAD_ORDERS.values(), ids=BAD_ORDERS)
def test_a_bad_order_raises_the_alarm_for_every_seed(order: Callable[[Generator], Labels]) -> None:
    for seed in range(20):
        labels = order(np.random.default_rng(seed))
        assert not judge_order(labels, np.arange(0, len(labels), -(-len(labels) // 8))).is_fair


def test_one_sorted_shard_among_many_is_found_in_its_place() -> None:
    parts = np.arange(0, 20_000, 500)
    for number in (0, 17, 39):
        for seed in range(5):
            labels = np.random.default_rng(seed).permutation(20_000) % 100
            begin = int(parts[number])
            labels[begin : begin + 500].sort()
            verdict = judge_order(labels, parts)
            assert not verdict.is_fair and verdict.at == begin


def test_an_empty_order_is_fair() -> None:
    assert judge_order(np.array([], np.int64), ()).is_fair
