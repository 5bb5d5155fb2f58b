"""What is drawn for the views of a sample: nothing but a function of (seed, epoch, sample, view).

So batch size, ranks and resumes change nothing that a sample looks like.

Shapes: N images, P parameters of an augmentation, L kept patches.
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
    """A view as a compression shows it: params_NP, keep_idx_NL."""

    compression: Compression
    params_NP: NDArray[np.float32]
    keep_idx_NL: NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """All that is drawn for a batch: windows_N4 of each view, and a DrawnView a compression."""

    windows: tuple[Windows, ...] = ()
    views: tuple[DrawnView, ...] = ()


Drawing = Callable[[Plan, NDArray[np.int64]], Drawn]
"""From a plan and the (height, width) of its images, sizes_N2."""


@dataclass(frozen=True)
class Draws:
    """Of the samples of a batch, as its plan names them; a view is given by its place in `views`.

    A compression leaves window and augmentation as they are. As a Drawing, draws for
    `compressions`: of more than there are views, the further ones show the views anew, from the
    first on. It needs no torch, so a process may do it that has only NumPy.
    """

    views: tuple[View, ...]
    seed: int
    compressions: tuple[Compression, ...] = ()

    def __call__(self, plan: Plan, sizes_N2: NDArray[np.int64]) -> Drawn:
        return Drawn(self.windows(plan, sizes_N2), self.drawn(plan, self.compressions))

    def drawn(self, plan: Plan, compressions: tuple[Compression, ...]) -> tuple[DrawnView, ...]:
        """The views as compressions show them."""
        places = [number % len(self.views) for number in range(len(compressions))]
        params = {place: self.params(plan, place) for place in sorted(set(places))}
        return tuple(
            DrawnView(compression, params[place], self.keep_idx(plan, place, compression))
            for place, compression in zip(places, compressions, strict=True)
        )

    def windows(self, plan: Plan, sizes_N2: NDArray[np.int64]) -> tuple[Windows, ...]:
        """Where each view is cut, from images of these sizes."""
        return tuple(
            random_windows(view, place, self.seed, plan.epoch, plan.samples_N, sizes_N2)
            for place, view in enumerate(self.views)
        )

    def params(self, plan: Plan, place: int) -> NDArray[np.float32]:
        """How it is augmented: params_NP."""
        return augmentation.augmentation(
            self.views[place], place, self.seed, plan.epoch, plan.samples_N
        )

    def keep_idx(self, plan: Plan, place: int, compression: Compression) -> NDArray[np.int64]:
        """The patches that a compression keeps of it: keep_idx_NL."""
        size = self.views[place].size
        patches, keep = compression.grid(size) ** 2, compression.keep(size)
        return drops.kept_patches(self.seed, plan.epoch, plan.samples_N, place, patches, keep)
