"""Draws of a batch: crop windows, augmentation parameters and kept patches of each view.

A sample's draws depend on (seed, epoch, sample, view) alone, not on batch size, ranks or resumes.

Legend of shape suffixes: N images, P augmentation parameters, L kept patches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws import augmentation, drops
from accelssl.pipeline.draws.order import Plan
from accelssl.pipeline.draws.windows import Windows, random_windows
from accelssl.pipeline.views import View


@dataclass(frozen=True)
class DrawnView:
    """Draws of one view for one compression: params_NP and keep_idx_NL."""

    compression: Compression
    params_NP: NDArray[np.float32]
    keep_idx_NL: NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """Draws of a batch: windows_N4 for each view, and a DrawnView for each compression."""

    windows: tuple[Windows, ...] = ()
    views: tuple[DrawnView, ...] = ()


Drawing = Callable[[Plan, NDArray[np.int64]], Drawn]
"""Function from a plan and sizes_N2, the (height, width) of its images, to their draws."""


@dataclass(frozen=True)
class Draws:
    """Drawing for fixed `views`, `seed` and `compressions`; views are named by their index.

    A compression changes neither window nor augmentation. If there are more compressions than
    views, the further ones apply to the views again, from the first view on. The draws need no
    torch: the reader processes compute them with NumPy alone.
    """

    views: tuple[View, ...]
    seed: int
    compressions: tuple[Compression, ...] = ()

    def __call__(self, plan: Plan, sizes_N2: NDArray[np.int64]) -> Drawn:
        return Drawn(self.windows(plan, sizes_N2), self.drawn(plan, self.compressions))

    def drawn(self, plan: Plan, compressions: tuple[Compression, ...]) -> tuple[DrawnView, ...]:
        """Return a DrawnView for each compression."""
        places = [number % len(self.views) for number in range(len(compressions))]
        params = {place: self.params(plan, place) for place in sorted(set(places))}
        return tuple(
            DrawnView(compression, params[place], self.keep_idx(plan, place, compression))
            for place, compression in zip(places, compressions, strict=True)
        )

    def windows(self, plan: Plan, sizes_N2: NDArray[np.int64]) -> tuple[Windows, ...]:
        """Return windows_N4 of each view, in images of these sizes."""
        return tuple(
            random_windows(view, place, self.seed, plan.epoch, plan.samples_N, sizes_N2)
            for place, view in enumerate(self.views)
        )

    def params(self, plan: Plan, place: int) -> NDArray[np.float32]:
        """Return the augmentation parameters of view `place`: params_NP."""
        return augmentation.augmentation(
            self.views[place], place, self.seed, plan.epoch, plan.samples_N
        )

    def keep_idx(self, plan: Plan, place: int, compression: Compression) -> NDArray[np.int64]:
        """Return the patches of view `place` that a compression keeps: keep_idx_NL."""
        size = self.views[place].size
        patches, keep = compression.grid(size) ** 2, compression.keep(size)
        return drops.kept_patches(self.seed, plan.epoch, plan.samples_N, place, patches, keep)
