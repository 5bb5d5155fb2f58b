import numpy as np

from accelssl.pipeline.draws.drops import kept_patches


def test_kept_patches_are_distinct_ascending_and_in_the_grid() -> None:
    kept = kept_patches(0, 0, np.arange(50), 0, 64, 32)
    assert kept.shape == (50, 32)
    assert (np.diff(kept, axis=1) > 0).all()
    assert kept.min() >= 0 and kept.max() < 64


def test_samples_views_and_epochs_keep_different_patches() -> None:
    base = kept_patches(0, 0, np.arange(2), 0, 225, 56)
    assert (base[0] != base[1]).any()
    assert (base != kept_patches(0, 0, np.arange(2), 1, 225, 56)).any()
    assert (base != kept_patches(0, 1, np.arange(2), 0, 225, 56)).any()


def test_every_patch_is_kept_equally_often() -> None:
    kept = kept_patches(0, 0, np.arange(4000), 0, 64, 16)
    counts = np.bincount(kept.ravel(), minlength=64)
    sigma = np.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(counts - 1000).max() < 4.5 * sigma


def test_a_sample_keeps_the_same_patches_in_any_batch() -> None:
    together = kept_patches(5, 3, np.array([4, 8, 15]), 1, 64, 8)
    assert (together[2] == kept_patches(5, 3, np.array([15]), 1, 64, 8)[0]).all()


def test_everything_is_kept_in_order_when_nothing_is_dropped() -> None:
    assert (kept_patches(0, 0, np.arange(3), 0, 25, 25) == np.arange(25)).all()


def test_keeping_more_only_adds_patches() -> None:
    few = kept_patches(0, 0, np.arange(20), 0, 100, 10)
    many = kept_patches(0, 0, np.arange(20), 0, 100, 50)
    assert all(set(a) <= set(b) for a, b in zip(few, many, strict=True))
