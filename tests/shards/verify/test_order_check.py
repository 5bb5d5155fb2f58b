"""The judge of orders: exact odds, no false alarm on fair shuffles, no bad order missed."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from accelssl.shards.verify.order_check import judge_order, log_growths

Labels = npt.NDArray[np.int64]
Generator = np.random.Generator


@pytest.mark.parametrize(
    "labels", [(3,), (0, 0, 0), (0, 1, 2, 3, 4, 5), (0, 0, 1, 1, 2), (0, 0, 0, 0, 1, 1, 2, 2)]
)
def test_over_all_arrangements_the_mean_wealth_of_no_strategy_grows(
    labels: tuple[int, ...],
) -> None:
    # The whole proof of the false-alarm rate rests on this: the mean is taken over every outcome.
    arrangements = sorted(set(itertools.permutations(labels)))
    wealth = np.array(
        [[np.exp(np.cumsum(g)) for g in log_growths(np.array(a))] for a in arrangements]
    )
    mean = wealth.mean(axis=0)
    assert mean.max() <= 1 + 1e-12
    against_the_window = np.arange(len(mean)) % 8 >= 5
    np.testing.assert_allclose(mean[against_the_window], 1.0, rtol=1e-12)
    # The others lose what they bet on labels of which nothing is left; at first there are none.
    np.testing.assert_allclose(mean[:, : min(Counter(labels).values())], 1.0, rtol=1e-12)


def test_the_strategies_bet_what_they_say_against_the_exact_odds() -> None:
    labels = np.random.default_rng(5).integers(0, 4, 40)
    growths = [np.exp(growth) for growth in log_growths(labels)]
    expected: list[list[float]] = []
    for window in (1, 4, 16):
        for share in (0.001, 0.01, 0.1, 0.5, 0.9):
            expected.append([])
            for t, label in enumerate(labels):
                left, before = Counter(labels[t:].tolist()), labels[max(0, t - window) : t].tolist()
                fair = left[int(label)] / len(labels[t:])
                bet = before.count(label) / len(before) if before else fair
                expected[-1].append(1 - share + share * bet / fair)
        for tilt in (-0.1, -0.5, -2.0):
            expected.append([])
            for t, label in enumerate(labels):
                before = labels[max(0, t - window) : t].tolist()
                chance = np.isin(labels[t:], before).mean()
                factor = np.exp(tilt) if label in before else 1.0
                expected[-1].append(factor / (1 - chance + chance * np.exp(tilt)))
    np.testing.assert_allclose(growths, expected, rtol=1e-10)


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
    odds = []
    for seed in range(200):
        rng = np.random.default_rng([seed, count, classes])
        verdict = judge_order(rng.permutation(np.arange(count) % classes), parts)
        assert verdict.is_fair
        odds.append(verdict.odds_log10)
    # Stakes of m to 1 come at most once in m times, up to the chance of 200 draws.
    assert np.mean(np.array(odds) >= 1) <= 0.1 + 4 * np.sqrt(0.1 * 0.9 / 200)
    assert np.mean(np.array(odds) >= 2) <= 0.01 + 4 * np.sqrt(0.01 * 0.99 / 200)


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
            at = judge_order(labels, parts).at
            assert at is not None and begin <= at < begin + 500


def test_an_empty_order_is_fair() -> None:
    assert judge_order(np.array([], np.int64), ()).is_fair
