"""What is drawn for the views of a sample: nothing but a function of (seed, epoch, sample, view).

So batch size, ranks and resumes change nothing that a sample looks like.

Shapes: N images, P parameters of an augmentation, L kept patches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.compress import augmentation, drops
from accelssl.pipeline.compress.compression import Compression
from accelssl.pipeline.order import Plan
from accelssl.pipeline.views import View
from accelssl.pipeline.windows import Windows, random_windows


@dataclass(frozen=True)
class Draws:
    """Of the samples of a batch, as its plan names them; a view is given by its place in `views`.

    A compression leaves window and augmentation as they are.
    """

    views: tuple[View, ...]
    seed: int

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
