"""Draws depend on seed, epoch, sample and view alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.draws import Draws
from accelssl.pipeline.draws.order import Plan, Position

VIEWS = views.dino(96, (0.25, 1.0), n_local=2, local_size=32, local_scale=(0.05, 0.25))
HALF = Compression(16, 0.5)


def drawn(samples: list[int], *, seed: int = 3, epoch: int = 2) -> list[list[NDArray[Any]]]:
    """Return windows, augmentation parameters and kept patches of each view."""
    draws, plan = Draws(VIEWS, seed), Plan(np.array(samples), epoch, Position())
    sizes_N2 = np.array([(100 + sample, 150) for sample in samples])
    windows = draws.windows(plan, sizes_N2)
    return [
        [windows[place], draws.params(plan, place), draws.keep_idx(plan, place, HALF)]
        for place in range(len(VIEWS))
    ]


def test_a_sample_is_drawn_alike_in_any_batch_and_any_place_of_it() -> None:
    for large, alone in zip(drawn([7, 1, 4]), drawn([4]), strict=True):
        for together, by_itself in zip(large, alone, strict=True):
            assert (together[2] == by_itself[0]).all()


def test_samples_views_epochs_and_seeds_are_drawn_anew() -> None:
    large_crops = drawn([4, 5])[:2]
    for kind in range(3):
        (first, other_sample), (other_view, _) = (view[kind] for view in large_crops)
        (other_epoch, _), (other_seed, _) = (
            drawn([4, 5], **changed)[0][kind] for changed in ({"epoch": 3}, {"seed": 4})
        )
        for other in (other_sample, other_view, other_epoch, other_seed):
            assert (first != other).any()


def test_each_view_keeps_patches_of_its_own_size_and_a_compression_changes_nothing_else() -> None:
    draws, plan = Draws(VIEWS, 3), Plan(np.arange(5), 2, Position())
    assert [draws.keep_idx(plan, place, HALF).shape[1] for place in range(4)] == [18, 18, 2, 2]
    few, many = (draws.keep_idx(plan, 0, Compression(16, drop)) for drop in (0.75, 0.5))
    assert all(set(a) < set(b) for a, b in zip(few, many, strict=True))
