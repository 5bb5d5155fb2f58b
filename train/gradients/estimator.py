"""Squared bias, variance and cost-adjusted error of a compressed gradient, from sums (CA-MSE).

*Accelerating Augmentation Invariance Pretraining*, section 4.3. Sub-batch b of n, K images each,
has the gradient G_b uncompressed and g_b compressed, of the same images and crops; d_b = G_b - g_b.

    bias^2 = mean of <d_b, d_c> over b != c = ||dbar||^2 - (sum ||d_b||^2 - n ||dbar||^2) / n(n - 1)
    var    = K (sum ||g_b||^2 - n ||gbar||^2) / (n - 1)                         of one image
    CA-MSE = bias^2 + cost / budget x var

The paper takes ||dbar||^2 ("plugin"), which is too large by the variance of dbar: more than the
bias itself unless n is huge. Taking the variances of Gbar and gbar from it is no remedy, since the
two share their images. The paired estimate above has no bias, and may come out below 0.

Intervals are those of a jackknife that leaves out one of J groups of sub-batches at a time. It
needs the products of the groups' sums, J vectors of the model's size for every cell; kept instead
are sketches of M values (Sketch). The estimates themselves are from the exact sums. Where they
err, intervals are too wide: by a factor of up to sqrt(1 + r / M) for noise of r directions, and of
up to sqrt(2) where the bias is small against the noise.

Cells of one stage have the same images, whose noise they share: what two of them differ by is known
better than either. So its interval is a jackknife of its own (`excess`). No torch.

Shapes: J groups, M values of a sketch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import special

Method = Literal["paired", "plugin"]
ESTIMATORS: tuple[Method, ...] = get_args(Method)
GROUPS = 16
FEWEST = 4
"""Fewest sub-batches for a meaningful interval."""
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Norms:
    """Statistics of n vectors in J groups: sums of squared norms by group, squared norm of the
    total, sketches of the groups' sums."""

    squares_J: Floats
    of_sum: float
    sketches_JM: Floats

    def with_all_and_without_each(self) -> tuple[Floats, Floats]:
        """Return the sum of squares and the square of the sum: of all vectors, then without
        group 1, 2,"""
        squares = self.squares_J.sum() - np.append(0.0, self.squares_J)
        whole_M = self.sketches_JM.sum(0)
        rest_J = np.square(whole_M - self.sketches_JM).sum(1)
        # The error of a sketch hardly changes without a group: use only the change.
        return squares, self.of_sum + np.append(0.0, rest_J - np.square(whole_M).sum())


@dataclass(frozen=True)
class Sums:
    """The sums of one cell. sizes_J: sub-batches in each group; G, g and d as above."""

    sizes_J: NDArray[np.int64]
    baseline: Norms
    compressed: Norms
    difference: Norms


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval of probability CONFIDENCE."""

    value: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Estimate:
    """The estimates of one cell. norm2: ||G||^2. normalised: the first three divided by norm2,
    NaN unless norm2 > 0. without_J: the CA-MSE without group 1, 2,"""

    ca_mse: Interval
    without_J: tuple[float, ...]
    bias2: Interval
    variance: Interval
    norm2: Interval
    normalised: dict[str, Interval]


def estimate(sums: Sums, subbatch: int, cost_share: float, method: Method = "paired") -> Estimate:
    """Estimate squared bias, variance and CA-MSE of a cell from its sums.

    subbatch: K. cost_share: the cell's cost over the budget of a step, in units of one image; 1 /
    batch size for an uncompressed step.
    """
    n = sums.sizes_J.sum() - np.append(0, sums.sizes_J)
    variance = subbatch * _spread(n, sums.compressed)
    squared = _squared_mean if method == "paired" else _plugin
    bias2, norm2 = squared(n, sums.difference), squared(n, sums.baseline)
    found = {
        "ca_mse": bias2 + cost_share * variance,
        "bias2": bias2,
        "variance": variance,
    }
    scale = np.where(norm2 > 0, norm2, np.nan)
    return Estimate(
        **{name: _interval(values) for name, values in found.items()},
        without_J=tuple(map(float, found["ca_mse"][1:])),
        norm2=_interval(norm2),
        normalised={name: _interval(values / scale) for name, values in found.items()},
    )


def excess(
    value: float, without_J: Sequence[float], least: float, least_without_J: Sequence[float]
) -> Interval:
    """Estimate the difference of two cells' CA-MSE on the same images."""
    values = np.array([value, *without_J]) - np.array([least, *least_without_J])
    return _interval(values)


def _spread(n: Floats, norms: Norms) -> Floats:
    """Return the variance of the n vectors."""
    squares, of_sum = norms.with_all_and_without_each()
    return (squares - of_sum / n) / (n - 1)


def _squared_mean(n: Floats, norms: Norms) -> Floats:
    """Return ||mean||^2 without bias: the mean product of two different vectors."""
    squares, of_sum = norms.with_all_and_without_each()
    return (of_sum - squares) / (n * (n - 1))


def _plugin(n: Floats, norms: Norms) -> Floats:
    _, of_sum = norms.with_all_and_without_each()
    return of_sum / n**2


def _interval(values: Floats) -> Interval:
    """Return the jackknife interval. values: of all groups, then without each group."""
    value, without_J = float(values[0]), values[1:]
    groups = len(without_J)
    error = np.sqrt((groups - 1) * np.square(without_J - without_J.mean()).mean())
    reach = float(special.stdtrit(groups - 1, (1 + CONFIDENCE) / 2) * error)  # a t quantile
    return Interval(value, value - reach, value + reach)
