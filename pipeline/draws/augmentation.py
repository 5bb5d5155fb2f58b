"""Draw the augmentation parameters: one row of numbers per crop, an input of the op."""

from enum import IntEnum
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.draws.philox import Purpose, draw, uniform
from accelssl.pipeline.views import View


class Column(IntEnum):
    """Columns of params_NP, float32.

    ORDER is a row of JITTER_ORDERS, or -1: no jitter. BRIGHTNESS, CONTRAST and SATURATION are
    factors and HUE a fraction of a turn, as torchvision.transforms.functional takes them. GRAY,
    SOLARIZE and FLIP are 0 or 1. SIGMA is the blur's standard deviation in pixels, 0: no blur.
    """

    ORDER = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    HUE = 4
    GRAY = 5
    SIGMA = 6
    SOLARIZE = 7
    FLIP = 8


JITTER_OPS = (Column.BRIGHTNESS, Column.CONTRAST, Column.SATURATION, Column.HUE)
JITTER_ORDERS = tuple(permutations(JITTER_OPS))


def augmentation(
    view: View, index: int, seed: int, epoch: int, samples_N: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return params_NP of `view`, the method's view number `index`, for these samples.

    The distributions are torchvision's: factors uniform in [max(0, 1 - s), 1 + s], hue in [-h, h],
    sigma uniform in its range, and the four jitters in random order.
    """
    u = uniform(draw(seed, epoch, samples_N, index, Purpose.AUGMENT, 12))
    params = _params(view, u)
    if view.swapped is not None:
        roles = draw(seed, epoch, samples_N, 0, Purpose.ROLES, 1)
        params = np.where(roles < 2**31, params, _params(view.swapped, u))
    return params


def _params(view: View, u: NDArray[np.float64]) -> NDArray[np.float32]:
    params = np.zeros((len(u), len(Column)), dtype=np.float32)
    order = np.floor(u[:, 1] * len(JITTER_ORDERS))
    params[:, Column.ORDER] = np.where(u[:, 0] < view.jitter_p, order, -1)
    for column, strength, draws in zip(JITTER_OPS, view.jitter, u[:, 2:6].T, strict=True):
        centre = 0.0 if column is Column.HUE else 1.0
        low = -strength if column is Column.HUE else max(0.0, 1.0 - strength)
        params[:, column] = low + draws * (centre + strength - low)
    low, high = view.blur_sigma
    params[:, Column.GRAY] = u[:, 6] < view.gray_p
    params[:, Column.SIGMA] = np.where(u[:, 7] < view.blur_p, low + u[:, 8] * (high - low), 0)
    params[:, Column.SOLARIZE] = u[:, 9] < view.solarize_p
    params[:, Column.FLIP] = u[:, 10] < view.flip_p
    return params


def identity(samples: int) -> NDArray[np.float32]:
    """Return params_NP that change nothing, for evaluation."""
    params = np.zeros((samples, len(Column)), dtype=np.float32)
    params[:, Column.ORDER] = -1
    return params
