import numpy as np
import pytest

from accelssl.pipeline import views
from accelssl.pipeline.draws.augmentation import (
    JITTER_ORDERS,
    Column,
    augmentation,
    identity,
)
from accelssl.pipeline.views import View

SAMPLES = np.arange(20_000)


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    view = View("v", 240, jitter=(0.4, 0.4, 0.2, 0.1), blur_p=0.5, solarize_p=0.2)
    return augmentation(view, 0, 0, 0, SAMPLES)


def test_each_change_happens_as_often_as_its_probability(drawn: np.ndarray) -> None:
    for happens, probability in [
        (drawn[:, Column.ORDER] >= 0, 0.8),
        (drawn[:, Column.GRAY] == 1, 0.2),
        (drawn[:, Column.SIGMA] > 0, 0.5),
        (drawn[:, Column.SOLARIZE] == 1, 0.2),
        (drawn[:, Column.FLIP] == 1, 0.5),
    ]:
        sigma = np.sqrt(probability * (1 - probability) / len(SAMPLES))
        assert abs(happens.mean() - probability) < 4.5 * sigma


def test_factors_are_uniform_in_torchvisions_ranges(drawn: np.ndarray) -> None:
    for column, low, high in [
        (Column.BRIGHTNESS, 0.6, 1.4),
        (Column.CONTRAST, 0.6, 1.4),
        (Column.SATURATION, 0.8, 1.2),
        (Column.HUE, -0.1, 0.1),
    ]:
        values = drawn[:, column]
        assert low - 1e-6 <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high + 1e-6
        assert abs(values.mean() - (low + high) / 2) < 0.02 * (high - low)
    sigmas = drawn[drawn[:, Column.SIGMA] > 0, Column.SIGMA]
    assert sigmas.min() >= 0.1 and sigmas.max() <= 2.0 and abs(sigmas.mean() - 1.05) < 0.03


def test_every_order_of_the_four_jitters_occurs_equally_often(drawn: np.ndarray) -> None:
    orders = drawn[drawn[:, Column.ORDER] >= 0, Column.ORDER].astype(int)
    counts = np.bincount(orders, minlength=len(JITTER_ORDERS))
    assert len(counts) == 24
    assert np.abs(counts - counts.mean()).max() < 4.5 * np.sqrt(counts.mean())


def test_strong_jitter_never_gives_a_negative_factor() -> None:
    strong = View("v", 240, jitter=(1.5, 0.8, 0.8, 0.2))
    assert augmentation(strong, 0, 0, 0, SAMPLES)[:, Column.BRIGHTNESS].min() >= 0


def test_changes_are_independent_of_each_other(drawn: np.ndarray) -> None:
    changing = drawn[:, [c for c in Column if c is not Column.ORDER]]
    correlation = np.corrcoef(changing.T) - np.eye(changing.shape[1])
    assert np.abs(correlation).max() < 0.035


def test_a_sample_is_augmented_alike_in_any_batch_and_unlike_in_its_other_view() -> None:
    query, key = views.simclr(240)
    together = augmentation(query, 0, 1, 2, np.array([3, 5, 8]))
    assert (together[1] == augmentation(query, 0, 1, 2, np.array([5]))[0]).all()
    assert (together != augmentation(key, 1, 1, 2, np.array([3, 5, 8]))).any(axis=1).all()


def is_blurred(params_NP: np.ndarray) -> np.ndarray:
    return params_NP[:, Column.SIGMA] > 0


def test_mocos_views_are_the_originals_with_their_roles_unswapped() -> None:
    pair = views.moco(240, swaps_roles=False)
    for view, blur, solarize in zip(pair, (1.0, 0.1), (0.0, 0.2), strict=True):
        assert (view.jitter, view.jitter_p, view.gray_p) == ((0.4, 0.4, 0.2, 0.1), 0.8, 0.2)
        assert (view.blur_p, view.solarize_p, view.flip_p) == (blur, solarize, 0.5)
        assert (view.size, view.scale, view.blur_sigma) == (240, (0.08, 1.0), (0.1, 2.0))
        assert view.swapped is None


def test_roles_are_swapped_in_half_of_the_samples_and_in_both_views_at_once() -> None:
    swapping, fixed = views.moco(240), views.moco(240, swaps_roles=False)
    query, key = (augmentation(view, i, 7, 3, SAMPLES) for i, view in enumerate(swapping))
    own = [augmentation(view, i, 7, 3, SAMPLES) for i, view in enumerate(fixed)]
    other = [augmentation(view, i, 7, 3, SAMPLES) for i, view in enumerate(reversed(fixed))]
    differs = (own[0] != other[0]).any(axis=1)  # in the others one cannot tell
    swapped = (query == other[0]).all(axis=1)
    assert ((query == own[0]).all(axis=1) | swapped).all()
    assert differs.mean() > 0.85
    assert abs(swapped[differs].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(differs.sum())
    assert (key[differs & swapped] == other[1][differs & swapped]).all()
    assert (key[differs & ~swapped] == own[1][differs & ~swapped]).all()


def test_either_role_sees_the_mean_of_both_distributions_and_a_pair_one_of_each() -> None:
    query, key = (augmentation(view, i, 0, 0, SAMPLES) for i, view in enumerate(views.moco(240)))
    for params in (query, key):
        for happens, probability in [
            (is_blurred(params), (1.0 + 0.1) / 2),
            (params[:, Column.SOLARIZE] == 1, 0.2 / 2),
        ]:
            sigma = np.sqrt(probability * (1 - probability) / len(SAMPLES))
            assert abs(happens.mean() - probability) < 4.5 * sigma
    assert (is_blurred(query) | is_blurred(key)).all()
    solarized = (query[:, Column.SOLARIZE] == 1) & (key[:, Column.SOLARIZE] == 1)
    assert not solarized.any()


def test_a_role_depends_on_seed_epoch_and_sample_and_not_on_the_batch() -> None:
    query = views.moco(240)[0]

    def blurred(seed: int, epoch: int) -> bytes:
        return is_blurred(augmentation(query, 0, seed, epoch, SAMPLES[:200])).tobytes()

    assert len({blurred(0, 0), blurred(1, 0), blurred(0, 1)}) == 3
    some = np.array([900, 3, 17])
    together = augmentation(query, 0, 0, 0, SAMPLES[:1000])
    assert (augmentation(query, 0, 0, 0, some) == together[some]).all()


def test_swapping_roles_leaves_every_other_draw_as_it_was() -> None:
    swapping, fixed = views.moco(240)[0], views.moco(240, swaps_roles=False)[0]
    ours, theirs = (augmentation(view, 0, 0, 0, SAMPLES) for view in (swapping, fixed))
    same = [c for c in Column if c not in (Column.SIGMA, Column.SOLARIZE)]
    assert (ours[:, same] == theirs[:, same]).all()


def test_no_augmentation_is_no_jitter_and_every_flag_off() -> None:
    assert (identity(2)[:, Column.ORDER] == -1).all()
    assert (identity(2)[:, Column.ORDER + 1 :] == 0).all()


def test_dinos_large_crops_are_mocos_and_its_small_ones_are_small_and_half_blurred() -> None:
    for swaps in (False, True):
        found = views.dino(240, n_local=3, swaps_roles=swaps)
        assert found[:2] == views.moco(240, (0.25, 1.0), swaps_roles=swaps)
        assert [(view.size, view.scale) for view in found[2:]] == [(96, (0.05, 0.25))] * 3
    small = [augmentation(view, 2 + i, 0, 0, SAMPLES) for i, view in enumerate(found[2:])]
    for params in small:
        assert abs((params[:, Column.SIGMA] > 0).mean() - 0.5) < 0.02
        assert not params[:, Column.SOLARIZE].any()
    assert not np.array_equal(small[0], small[1])
    assert len({view.name for view in found}) == 5
