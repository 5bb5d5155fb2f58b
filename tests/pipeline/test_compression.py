import pytest

from accelssl.errors import UserError
from accelssl.pipeline.compression import PATCH_SIDES, Compression


@pytest.mark.parametrize(
    ("size", "p", "drop", "keep"),
    [
        (224, 16, 0.9, 19),
        (224, 16, 0.75, 49),
        (224, 16, 0.0, 196),
        (240, 16, 0.8, 45),
        (240, 24, 0.9, 10),
        (240, 30, 0.5, 32),
        (240, 48, 0.9, 2),
        (240, 40, 0.25, 27),
    ],
)
def test_keep_counts_are_the_papers(size: int, p: int, drop: float, keep: int) -> None:
    assert Compression(p, drop).keep(size) == keep


def test_keep_is_the_exact_floor_where_floating_point_is_not() -> None:
    for p in PATCH_SIDES:
        for per_cent in range(100):
            patches = (240 // p) ** 2
            exact = (100 - per_cent) * patches // 100
            if exact:
                assert Compression(p, per_cent / 100).keep(240) == exact


def test_240_pixels_are_divisible_by_every_patch_side() -> None:
    assert [Compression(p, 0).grid(240) for p in PATCH_SIDES] == [15, 12, 10, 8, 6, 5]


@pytest.mark.parametrize(("size", "p", "drop"), [(224, 24, 0.0), (240, 48, 0.99)])
def test_a_grid_that_does_not_fit_or_keeps_nothing_is_refused(
    size: int, p: int, drop: float
) -> None:
    with pytest.raises(UserError, match=str(p) if drop == 0 else str(drop)):
        Compression(p, drop).keep(size)


def test_the_drop_that_a_refusal_names_keeps_a_patch() -> None:
    for side in range(1, 16):
        with pytest.raises(UserError) as refused:
            Compression(16, 0.9999).keep(16 * side)
        named = float(refused.value.remedy.split("at most ")[1].split(",")[0])
        assert Compression(16, named).keep(16 * side) == 1


@pytest.mark.parametrize(("p", "drop"), [(15, 0.0), (16, 1.0), (16, -0.1), (16, float("nan"))])
def test_values_outside_their_range_are_refused(p: int, drop: float) -> None:
    with pytest.raises(UserError):
        Compression(p, drop)
