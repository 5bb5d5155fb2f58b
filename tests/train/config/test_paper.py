"""The numbers that the paper prints come out of the formulas, as docs/paper.md states them."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.cost import Convention, moco_cost
from accelssl.train.methods import METHODS

PAGE = Path(__file__).resolve().parents[3] / "docs/paper.md"
P196, T197 = Convention.PATCHES196, Convention.TEXT197
BOTH, NEITHER = {P196, T197}, set[Convention]()
FIGURE_SIDES, FIGURE_DROPS = (16, 20, 24, 30, 40, 48), ("0", "0.25", "0.5", "0.75", "0.9")
IN100_READ, IN100_COUNTED, IN100_STATED = 130_000, 126_689, 125_000
IN1K_READ, IN1K_COUNTED = 1_285_000, 1_281_167
"""Numbers of images: as the budgets imply, as counted, as the text says ("around")."""


class Cell(NamedTuple):
    """A printed number, its value under each convention, and the conventions that give it."""

    name: str
    printed: str
    value: Callable[[Convention], float]
    given_by: set[Convention] = BOTH

    @property
    def decimals(self) -> int:
        return len(self.printed.partition(".")[2])

    @property
    def row(self) -> str:
        """Return the row of docs/paper.md: one digit more than the paper prints."""
        values = (f"{self.value(c):,.{self.decimals + 1}f}" for c in (P196, T197))
        by = {2: "both", 1: "patches196", 0: "neither"}[len(self.given_by)]
        return f"| {' | '.join([self.name, self.printed, *values, by])} |"


def _dropped(l_q: int, l_k: int, printed: str) -> Cell:
    """Lengths count CLS, as in the paper."""
    return Cell(f"L_q {l_q}, L_k {l_k}", printed, lambda c: moco_cost(l_q - 1, l_k - 1, c))


def _patches(name: str, p_q: int, p_k: int, printed: str, given_by: set[Convention]) -> Cell:
    l_q, l_k = (Compression(p, 0.0).keep(240) for p in (p_q, p_k))
    return Cell(name, printed, lambda c: moco_cost(l_q, l_k, c), given_by)


def _same_patches(p: int, length: int, printed: str, given_by: set[Convention]) -> Cell:
    return _patches(f"p {p}, L {length}", p, p, printed, given_by)


def _plain_cost(algo: str, n_local: int, n_global: int, convention: Convention) -> float:
    mode = "official" if n_global > 1 else "paper"
    settings = {"size": 224, "mode": mode, "n_local": n_local}
    return METHODS[algo].of(settings).sample_cost(UNCOMPRESSED, convention)


def _budget(
    run: str,
    printed: str,
    algo: str,
    epochs: int,
    images: int,
    given_by: set[Convention],
    *,
    times: int = 1,
    n_local: int = 0,
    n_global: int = 1,
) -> Cell:
    """Millions of units: epochs x images x `times` x the cost of an uncompressed image."""
    product = epochs * images * times / 1e6
    return Cell(
        f"{run}: {epochs} epochs of {images:,} images",
        printed,
        lambda c: product * _plain_cost(algo, n_local, n_global, c),
        given_by,
    )


TOKEN_DROPPING = [
    _dropped(20, 20, "0.4"),
    _dropped(20, 40, "0.5"),
    _dropped(20, 197, "1.3"),
    _dropped(50, 50, "1.0"),
    _dropped(50, 100, "1.3"),
    _dropped(50, 197, "1.8"),
    _dropped(100, 100, "2.0"),
    _dropped(100, 197, "2.5"),
    _dropped(197, 197, "4.0"),
]
SAME_PATCHES = [
    _same_patches(16, 225, "4.59", BOTH),
    _same_patches(20, 144, "2.94", BOTH),
    _same_patches(24, 100, "2.04", {P196}),
    _same_patches(30, 64, "1.31", {P196}),
    _same_patches(40, 36, "0.73", {P196}),
]
TWO_PATCHES = [
    _patches(f"p_q 30, p_k {p_k}", 30, p_k, printed, BOTH)
    for p_k, printed in ((16, "2.1"), (20, "1.7"), (24, "1.5"), (30, "1.3"))
]
BUDGETS = [
    *(
        _budget("MoCo-v3, IN-100", printed, "moco", epochs, images, given_by)
        for epochs, printed in ((200, "104"), (600, "312"), (1000, "520"))
        for images, given_by in (
            (IN100_READ, BOTH),
            (IN100_COUNTED, NEITHER),
            (IN100_STATED, NEITHER),
        )
    ),
    *(
        _budget(run, printed, "moco", epochs, images, given_by, times=times)
        for epochs, printed in ((100, "1028"), (300, "3084"), (600, "6168"))
        for run, images, times, given_by in (
            ("MoCo-v3, IN-1k, twice the formula", IN1K_READ, 2, BOTH),
            ("MoCo-v3, IN-1k, twice the formula", IN1K_COUNTED, 2, NEITHER),
            ("MoCo-v3, IN-1k", IN1K_COUNTED, 1, NEITHER),
        )
    ),
    _budget("SimCLR, IN-1k", "3075", "simclr", 400, IN1K_COUNTED, BOTH),
    _budget("SimCLR as twice MoCo-v3, IN-1k", "3075", "moco", 300, IN1K_COUNTED, BOTH, times=2),
    _budget("DINO, IN-1k, K 6", "2846", "dino", 300, IN1K_READ, NEITHER, n_local=6),
    _budget("DINO, IN-1k, K 6", "2846", "dino", 300, IN1K_COUNTED, NEITHER, n_local=6),
    _budget("DINO, IN-1k, K 8", "2846", "dino", 300, IN1K_COUNTED, NEITHER, n_local=8),
    _budget(
        "DINO official, IN-1k, K 10", "2846", "dino", 300, IN1K_COUNTED, NEITHER,
        n_local=10, n_global=2,
    ),
]  # fmt: skip
CELLS = [*TOKEN_DROPPING, *SAME_PATCHES, *TWO_PATCHES, *BUDGETS]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_printed_cell_is_given_by_the_conventions_that_the_page_names(cell: Cell) -> None:
    rounded = {c: f"{cell.value(c):.{cell.decimals}f}" for c in (P196, T197)}
    assert {c for c, text in rounded.items() if text == cell.printed} == cell.given_by


def test_the_printed_lengths_of_patches_leave_cls_out() -> None:
    lengths = [Compression(p, 0.0).keep(240) for p in (16, 20, 24, 30, 40)]
    assert [f"p {p}, L {n}" for p, n in zip((16, 20, 24, 30, 40), lengths, strict=True)] == [
        cell.name for cell in SAME_PATCHES
    ]


def test_the_printed_lengths_of_token_dropping_count_cls_and_100_stands_for_99() -> None:
    kept = [Compression(16, drop).keep(224) + 1 for drop in (0.9, 0.8, 0.75, 0.5, 0.0)]
    assert kept == [20, 40, 50, 99, 197]


@pytest.mark.parametrize("p", FIGURE_SIDES)
@pytest.mark.parametrize("drop", FIGURE_DROPS)
def test_thirty_compressions_cost_the_formula_in_exact_arithmetic(p: int, drop: str) -> None:
    """(3 L_q + 225) / 196 with whole keys, (3 L_q + L_k) / 196 as trained; L_q rounded down."""
    patches = (240 // p) ** 2
    kept = int((1 - Fraction(drop)) * patches)
    for l_k in (225, patches):
        exact = Fraction(3 * kept + l_k, 196)
        assert moco_cost(Compression(p, float(drop)).keep(240), l_k) == pytest.approx(float(exact))
    trained = METHODS["moco"]().sample_cost(Compression(p, float(drop)))
    assert trained == pytest.approx(float(Fraction(3 * kept + patches, 196)))


def test_compression_makes_images_4_times_cheaper_with_whole_keys_and_29_times_as_trained() -> None:
    plain, l_q = moco_cost(225, 225), Compression(48, 0.9).keep(240)
    assert plain / moco_cost(l_q, 225) == pytest.approx(4 * 225 / (3 * 2 + 225))
    assert plain / moco_cost(l_q, 25) == pytest.approx(4 * 225 / (3 * 2 + 25))


def test_300_epochs_with_six_small_crops_come_within_a_thousandth_of_dinos_budget() -> None:
    near = min((c.value(T197) for c in BUDGETS if c.printed == "2846"), key=lambda v: abs(v - 2846))
    assert near == pytest.approx(2846, rel=5e-4)


def test_dinos_small_crops_bound_the_speed_up_of_compression() -> None:
    small = 3 * 6 * T197.share(UNCOMPRESSED.keep(96))
    assert _plain_cost("dino", 6, 1, T197) / small == pytest.approx(2.18, abs=0.005)


@pytest.mark.parametrize(
    ("plain", "accelerated", "claimed"),
    [(6168, 1542, "4.0"), (3084, 1028, "3.0"), (520, 104, "5.0"), (3075, 922, "3.3"),
     (2846, 1138, "2.5")],
)  # fmt: skip
def test_claimed_speed_ups_are_ratios_of_budgets(
    plain: int, accelerated: int, claimed: str
) -> None:
    assert f"{plain / accelerated:.1f}" == claimed


def test_the_claimed_shares_of_the_uncompressed_budget_hold() -> None:
    assert 1542 / 6168 == 0.25
    assert 104 / 520 == 0.2
    assert 150 / 520 < 0.3


@pytest.mark.parametrize(
    ("compression", "size", "cost"),
    [
        (UNCOMPRESSED, 224, Fraction(4)),
        (Compression(16, 0.75), 224, Fraction(3 * 49 + 196, 196)),
        (Compression(30, 0.0), 240, Fraction(4 * 64, 196)),
    ],
)
def test_steps_of_104m_units_are_counted_up_to_the_one_that_overshoots(
    compression: Compression, size: int, cost: Fraction
) -> None:
    exact = Fraction(104_000_000) / (512 * cost)
    step = 512 * METHODS["moco"](size=size).sample_cost(compression)
    assert steps_bought(104e6, [(1.0, step)]) == [-(-exact.numerator // exact.denominator)]


def _figure_row(p: int, *, has_whole_keys: bool) -> str:
    """Return a row of docs/paper.md: patches196 / text197 for each drop."""
    l_k = 225 if has_whole_keys else (240 // p) ** 2
    lengths = [Compression(p, float(drop)).keep(240) for drop in FIGURE_DROPS]
    cells = [" / ".join(f"{moco_cost(n, l_k, c):.2f}" for c in (P196, T197)) for n in lengths]
    return f"| {' | '.join([f'p{p}', *cells])} |"


@pytest.mark.skipif(not PAGE.exists(), reason="needs the checkout")
def test_the_page_shows_the_computed_values() -> None:
    page = PAGE.read_text()
    rows = [cell.row for cell in CELLS]
    rows += [_figure_row(p, has_whole_keys=whole) for whole in (True, False) for p in FIGURE_SIDES]
    rows += [
        f"| {n_global} | {n_local} | {_plain_cost('dino', n_local, n_global, P196):.2f} "
        f"| {_plain_cost('dino', n_local, n_global, T197):.2f} |"
        for n_global in (1, 2)
        for n_local in (6, 8, 10)
    ]
    assert [row for row in rows if row not in page] == []
