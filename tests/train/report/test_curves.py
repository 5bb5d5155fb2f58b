"""Curves keep their shape when they are thinned and smoothed."""

import numpy as np
import numpy.typing as npt

from accelssl.train.report.curves import thinned, trend


def test_thinning_keeps_ends_extremes_order_and_gaps() -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(100_000.0), rng.standard_normal(100_000)
    y[[12_345, 67_890]] = 50.0, -50.0
    y[40_000:45_000] = np.nan
    few_x, few_y = thinned(x, y, 1000)
    assert len(few_x) <= 1000
    assert (few_x[0], few_x[-1]) == (0.0, 99_999.0)
    assert (np.diff(few_x) > 0).all()
    assert {12_345.0, 67_890.0} <= set(few_x.tolist())
    np.testing.assert_array_equal(few_y, y[few_x.astype(int)])
    assert np.isnan(few_y[(few_x >= 40_000) & (few_x < 45_000)]).all()
    assert np.isnan(few_y).any()


def test_short_curves_are_not_thinned() -> None:
    x = np.arange(100.0)
    assert thinned(x, x, 100) == (x, x)


def test_thinning_spreads_points_over_the_axis_and_not_over_the_steps() -> None:
    # 99% of the steps in the first half of the axis: the second half still gets half the points.
    x = np.concatenate([np.linspace(0, 0.5, 99_000), np.linspace(0.5, 1, 1001)[1:]])
    few_x, _ = thinned(x, np.random.default_rng(0).standard_normal(len(x)), 300)
    assert 0.45 < (few_x > 0.5).mean() < 0.55


def one_part(count: int) -> npt.NDArray[np.bool_]:
    begins: npt.NDArray[np.bool_] = np.arange(count) == 0
    return begins


def test_the_trend_of_a_slope_is_the_slope() -> None:
    x = np.linspace(0, 10, 5000)
    places, values = trend(x, 3 * x, one_part(5000))
    assert (places[0], places[-1]) == (0.0, 10.0)
    assert 250 <= len(places) <= 310
    inside = (places > 0.1) & (places < 9.9)
    np.testing.assert_allclose(values[inside], 3 * places[inside], atol=0.01)
    # At the very ends the window is lopsided, by at most 1/240 of the axis.
    np.testing.assert_allclose(values, 3 * places, atol=3 * 10 / 240)


def test_the_trend_ignores_a_diverged_step_and_narrows_noise() -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(6000.0), 2 + rng.standard_normal(6000)
    y[3000] = 1e9
    _, values = trend(x, y, one_part(6000))
    assert np.abs(values[1:-1] - 2).max() < 0.8
    assert values.std() < 0.25


def test_the_trend_does_not_cross_a_change_of_compression() -> None:
    x, y = np.arange(2000.0), np.repeat([1.0, 5.0], 1000)
    places, values = trend(x, y, (x == 0) | (x == 1000))
    np.testing.assert_array_equal(values, np.where(places < 1000, 1.0, 5.0))


def test_the_trend_has_a_gap_where_the_values_have_one() -> None:
    x, y = np.arange(6000.0), np.ones(6000)
    y[2000:4000] = np.nan
    y[5000] = np.nan
    places, values = trend(x, y, one_part(6000))
    assert np.isnan(values[(places > 2050) & (places < 3950)]).all()
    assert (values[(places < 1950) | (places > 4050)] == 1.0).all()


def test_few_points_are_their_own_trend() -> None:
    for count in (1, 2):
        x = np.arange(float(count))
        places, values = trend(x, np.ones(count), one_part(count))
        assert places.tolist() == x.tolist()
        assert values.tolist() == [1.0] * count
    places, values = trend(np.zeros(3), np.ones(3), one_part(3))
    assert values.tolist() == [1.0] * len(places)
