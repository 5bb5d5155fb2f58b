"""Curves for drawing: thinned without losing extremes, and their trend."""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]


def thinned(x: Curve, y: Curve, limit: int = 1200) -> tuple[Curve, Curve]:
    """Return at most `limit` of the points (x, y), both of shape (points,), x ascending.

    The axis is cut into equal buckets. The lowest and the highest point of each stay, so that no
    spike is lost. The first and the last point stay too, and one NaN of each bucket that has any,
    to draw gaps as gaps.
    """
    if len(x) <= limit:
        return x, y
    kept = {0, len(x) - 1}
    edges = np.linspace(x[0], x[-1], max(1, (limit - 2) // 3) + 1)[1:-1]
    bounds = [0, *np.searchsorted(x, edges).tolist(), len(x)]
    for start, stop in pairwise(bounds):
        bucket = y[start:stop]
        missing = np.isnan(bucket)
        if missing.any():
            kept.add(start + int(missing.argmax()))
        if not missing.all():
            kept.add(start + int(np.nanargmin(bucket)))
            kept.add(start + int(np.nanargmax(bucket)))
    order = np.array(sorted(kept))
    return x[order], y[order]


def trend(
    x: Curve, y: Curve, begins: npt.NDArray[np.bool_], points: int = 300
) -> tuple[Curve, Curve]:
    """Return the moving median of y over 1/40 of the axis, at about `points` places of x.

    A median, because one diverged step would lift a mean out of the frame. `begins` (points,) is
    true at the start of each part. Parts are smoothed separately: the loss jumps where the
    compression changes. NaN where most of a window is NaN.
    """
    span = float(x[-1] - x[0])
    places, medians = [], []
    starts = [0, *(np.flatnonzero(begins[1:]) + 1).tolist(), len(x)]
    for start, stop in pairwise(starts):
        part_x, part_y = x[start:stop], y[start:stop]
        share = float(part_x[-1] - part_x[0]) / span if span > 0 else 0.0
        even = np.linspace(part_x[0], part_x[-1], max(2, math.ceil(points * share)))
        for at in np.unique(np.searchsorted(part_x, even)).tolist():
            places.append(float(part_x[at]))
            medians.append(_median_around(part_x, part_y, at, span / 80))
    return np.array(places), np.array(medians)


def _median_around(x: Curve, y: Curve, at: int, reach: float) -> float:
    """Return the median of y within `reach` of x[at]. Near an end the window shrinks, to a third at
    most.

    A lopsided window at the end of a slope would bias the trend, and a single point would be noise.
    """
    to_end = min(float(x[at] - x[0]), float(x[-1] - x[at]))
    near = max(min(reach, to_end), reach / 3)
    start = min(int(np.searchsorted(x, x[at] - near)), max(0, at - 1))
    stop = max(int(np.searchsorted(x, x[at] + near, side="right")), min(len(x), at + 2))
    window = y[start:stop]
    there = window[~np.isnan(window)]
    return float(np.median(there)) if 2 * len(there) >= len(window) else math.nan
