"""Numbers read the way the report wants them."""

import pytest

from accelssl.formats import compression, duration, percent, quantity, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (5.0, "5"), (12.345, "12.3"), (999.4, "999"), (999.6, "1k"), (1000, "1k"),
        (200_000, "200k"), (999_600, "1M"), (1_281_167, "1.28M"), (104e6, "104M"),
        (6.168e9, "6.17G"),
        (0.00123, "0.00123"), (-2500, "-2.5k"),
    ],
)  # fmt: skip
def test_quantities_have_three_digits_and_a_suffix(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0.0 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"), (86399, "1 d 0 h"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_never_show_sixty_of_a_unit(value_s: float, text: str) -> None:
    assert duration(value_s) == text


def test_a_missing_figure_is_a_dash_everywhere() -> None:
    dash = "\N{EN DASH}"
    for form in (quantity, duration, percent, times):
        assert form(None) == form(float("nan")) == dash
    assert compression(30, 0.5) == "p30 d0.5"


def test_a_ratio_computed_in_two_ways_reads_the_same() -> None:
    assert {times(5.625), times(5.625 + 1e-12), times(5.625 - 1e-12)} == {times(5.625)}
