"""Test of a split's order of labels against random shuffles, by two numbers.

- The number of neighbours of the same class: too large for blocks of a class, too small for classes
  in turn. Its mean and variance over all orders of the same labels are exact.
- The drift, which is the Kruskal-Wallis statistic of the places of the classes: too large for
  sorted classes, trends, and shuffles in a small buffer.

A random shuffle is over the limit in either number about once in a million sets.

Legend: N samples in their order, C classes, P parts (shards).
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

LIMIT_SD: Final = 6.0
"""Largest number of standard deviations that is taken for chance."""
# Small counts are skewed: below this, LIMIT_SD would refuse more than one shuffle in a million.
_LEAST_SD = 2.0


class Verdict(NamedTuple):
    """Standard deviations of an order from a random shuffle, in neighbours and in drift.

    `at` is the first sample of the part whose number of neighbours deviates most.
    """

    neighbours_sd: float
    drift_sd: float
    at: int

    @property
    def is_fair(self) -> bool:
        return max(abs(self.neighbours_sd), abs(self.drift_sd)) <= LIMIT_SD


def judge_order(label_N: npt.ArrayLike, first_P: npt.ArrayLike = (0,)) -> Verdict:
    """Judge the labels of a split, any integers; part p begins at the sample first_P[p]."""
    _, class_N, count_C = np.unique(label_N, return_inverse=True, return_counts=True)
    if len(count_C) < 2:
        return Verdict(0.0, 0.0, 0)
    starts = np.asarray(first_P, np.int64)
    is_same_N = np.append(False, class_N[1:] == class_N[:-1])
    mean, deviation = neighbours_of_shuffles(count_C)
    excess_P = np.add.reduceat(is_same_N - mean / len(class_N), starts)
    neighbours_sd = float(is_same_N.sum() - mean) / max(deviation, _LEAST_SD)
    at = int(starts[np.abs(excess_P).argmax()])
    return Verdict(neighbours_sd, drift_sd(class_N, count_C), at)


def neighbours_of_shuffles(count_C: npt.NDArray[np.integer]) -> tuple[float, float]:
    """Return mean and standard deviation of the number of neighbours of the same class."""
    n = int(count_C.sum())
    # Ordered pairs, triples and quadruples of samples of a class.
    pairs_C = count_C * (count_C - 1.0)
    triples_C = pairs_C * (count_C - 2)
    two_pairs = (triples_C * (count_C - 3)).sum() + pairs_C.sum() ** 2 - (pairs_C**2).sum()
    mean = pairs_C.sum() / n
    mean_square = mean + (2 * triples_C.sum() + two_pairs) / (n * (n - 1))
    return float(mean), float(max(mean_square - mean**2, 0.0) ** 0.5)


def drift_sd(class_N: npt.NDArray[np.integer], count_C: npt.NDArray[np.integer]) -> float:
    """Return the Kruskal-Wallis statistic as a normal variable (Wilson-Hilferty)."""
    n, freedom = len(class_N), len(count_C) - 1
    sum_C = np.bincount(class_N, weights=np.arange(n) - (n - 1) / 2)
    statistic = 12 / (n * (n + 1)) * float((sum_C**2 / count_C).sum())
    variance = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - 1 + variance) / variance**0.5)
