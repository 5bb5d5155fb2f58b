"""Resize the patch, not the weight: FlexiViT's PI-resize moved to the data side.

A base kernel w for 16 px patches serves p px patches as P w, with P the pseudo-inverse resize of
FlexiViT (Beyer et al., CVPR 2023; paper, section 4.2). Since <x, P w> = <P^T x, w>, shrinking the
patch by P^T gives the same projection, and P^T = A (.) A^T is separable with A = pinv(B), where B
is the bilinear interpolation of a line from 16 to p values, without antialiasing.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.compression import BASE_SIDE


def interpolation(source: int, target: int) -> NDArray[np.float64]:
    """Return B, (target, source): linear interpolation, half-pixel centres, clamped at the ends."""
    at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    left = np.minimum(at.astype(int), source - 2)
    weight = at - left
    matrix = np.zeros((target, source))
    rows = np.arange(target)
    matrix[rows, left] = 1 - weight
    matrix[rows, left + 1] += weight
    return matrix


@cache
def shrink_matrix(p: int) -> NDArray[np.float64]:
    """Return A, (16, p), which shrinks a p x p patch X to A X A^T; the identity for p = 16.

    The rows of A sum to one, so shrinking and the affine normalisation of colours commute.
    """
    matrix: NDArray[np.float64] = np.eye(p)
    if p != BASE_SIDE:
        matrix = np.linalg.pinv(interpolation(BASE_SIDE, p)).astype(np.float64)
    matrix.flags.writeable = False
    return matrix
