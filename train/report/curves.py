"""Curves made ready for drawing: thinned without losing extremes, and their trend."""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]


def thinned(x: Curve, y: Curve, limit: int = 1200) -> tuple[Curve, Curve]:
    """At most `limit` of the points (x, y), both of shape (points,), x ascending, in their order.

    The axis is cut into equal buckets; of each, the lowest and the highest point stay, so that no
    spike is lost. The first and the last point stay too, and one NaN of a bucket that holds any,
    so that a gap is drawn as a gap.
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
    """The moving median of y over 1/40 of the axis, at about `points` places of x (ascending).

    A median, because one diverged step would lift a mean far out of the frame. Each part is taken
    alone; `begins` (points,) is true where one begins: the loss jumps where the compression
    changes, and a window across the jump would blur it. NaN where most of a window is NaN.
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
    """Median of y within `reach` of x[at]; near an end the window shrinks, to a third at most.

    A window lopsided at the end of a slope pulls the trend off it, and one that shrinks to a
    single point ends the trend in noise.
    """
    to_end = min(float(x[at] - x[0]), float(x[-1] - x[at]))
    near = max(min(reach, to_end), reach / 3)
    start = min(int(np.searchsorted(x, x[at] - near)), max(0, at - 1))
    stop = max(int(np.searchsorted(x, x[at] + near, side="right")), min(len(x), at + 2))
    window = y[start:stop]
    there = window[~np.isnan(window)]
    return float(np.median(there)) if 2 * len(there) >= len(window) else math.nan
