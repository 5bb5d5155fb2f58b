"""The paper's numbers come out of the formulas, or it is said that they do not."""

import json
import subprocess
import sys
from fractions import Fraction

import pytest

from accelssl.errors import UserError
from accelssl.train.config.cost import Convention
from accelssl.train.paper import paper_cells as paper
from accelssl.train.paper.paper_pages import paper_text
from accelssl.train.paper.paper_tables import CONVENTIONS, Cell, Table, tables

P196, T197 = Convention.PATCHES196, Convention.TEXT197


def table(name: str) -> Table:
    return next(found for found in tables() if found.name == name)


def value(name: str, cell: str, convention: Convention = P196) -> float:
    return next(c for c in table(name).cells if c.name == cell).values[convention]


def test_only_196_patches_reproduce_the_table_of_equal_patches() -> None:
    found = table("Patches of the same side")
    assert found.reproduced_by == (P196,)
    by_text = [cell.name for cell in found.cells if T197 in cell.reproduced_by]
    assert by_text == ["p 16, L 225", "p 20, L 144"]


@pytest.mark.parametrize("name", ["Token dropping", "Patches of two sides", "Claimed speed-ups"])
def test_the_other_tables_do_not_tell_the_conventions_apart(name: str) -> None:
    assert table(name).reproduced_by == CONVENTIONS


def test_every_length_of_the_dropping_table_is_kept_but_the_round_hundred() -> None:
    found = table("Lengths of the token dropping table")
    assert [c.printed for c in found.cells if not c.reproduced_by] == ["100"]
    assert value(found.name, "drop 0.5") == 99


def test_thirty_cells_of_the_figure_are_the_formula_in_exact_arithmetic() -> None:
    """(3 L_q + 225) / 196, and with the key's patches (3 L_q + L_k) / 196; L_q rounded down."""
    figure, trained = table("The cost figure"), table("The same cells as they are trained")
    assert len(figure.cells) == len(trained.cells) == 30
    for p in (16, 20, 24, 30, 40, 48):
        for drop in ("0", "0.25", "0.5", "0.75", "0.9"):
            patches = (240 // p) ** 2
            kept = int((1 - Fraction(drop)) * patches)
            cell = f"p {p}, drop {drop}"
            plain, same = Fraction(3 * kept + 225, 196), Fraction(3 * kept + patches, 196)
            assert value(figure.name, cell) == pytest.approx(float(plain))
            assert value(trained.name, cell) == pytest.approx(float(same))


def test_the_figures_fourfold_is_one_of_thirty_once_keys_are_compressed() -> None:
    name = "The figure's largest speed-up"
    assert value(name, "p48 d0.9, keys uncompressed") == pytest.approx(4 * 225 / (3 * 2 + 225))
    assert value(name, "p48 d0.9, as trained") == pytest.approx(4 * 225 / (3 * 2 + 25))


def test_each_budget_of_moco_has_a_reading_and_that_of_dino_has_none() -> None:
    cells = table("Budgets").cells
    reproduced = {cell.printed for cell in cells if cell.reproduced_by}
    assert {cell.printed for cell in cells} - reproduced == {"2846"}
    near = [c.values[T197] for c in cells if c.printed == "2846"]
    assert min(near, key=lambda v: abs(v - 2846)) == pytest.approx(2846, rel=5e-4)


def test_in1k_budgets_need_the_formula_twice_and_in100_ones_once() -> None:
    for reading, cell in zip(paper.BUDGETS, table("Budgets").cells, strict=True):
        if cell.reproduced_by and reading.run == "MoCo-v3, IN-1k":
            assert (reading.times, reading.images) == (2, paper.IN1K_READ)
        if cell.reproduced_by and reading.run == "MoCo-v3, IN-100":
            assert (reading.times, reading.images) == (1, paper.IN100_READ)


def test_steps_of_a_budget_are_counted_up_to_the_one_that_overshoots() -> None:
    for name, cost in {
        "uncompressed, 224 px": Fraction(4),
        "L_q 50, L_k 197, 224 px": Fraction(3 * 49 + 196, 196),
        "p 30, 240 px": Fraction(4 * 64, 196),
    }.items():
        exact = Fraction(104_000_000) / (512 * cost)
        assert value("Steps", name) == -(-exact.numerator // exact.denominator)


def test_dinos_small_crops_bound_what_compression_can_save() -> None:
    cell = "so that no compression makes an image cheaper than, times"
    assert value("DINO", cell, T197) == pytest.approx(2.18, abs=0.005)


def test_a_bound_is_kept_below_it_alone() -> None:
    assert Cell("", "<30", {P196: 28.8, T197: 30.0}).reproduced_by == (P196,)


def test_rounding_is_to_the_printed_digits() -> None:
    assert Cell("", "1.0", {P196: 1.04, T197: 1.06}).reproduced_by == (P196,)
    assert Cell("", None, {P196: 1.0, T197: 1.0}).reproduced_by == ()


def test_all_three_forms_hold_every_cell() -> None:
    plain = paper_text(as_json=False, as_markdown=False)
    markdown = paper_text(as_json=False, as_markdown=True)
    facts = json.loads(paper_text(as_json=True, as_markdown=False))
    for found in tables():
        for cell in found.cells:
            assert cell.name in plain and f"| {cell.name} |" in markdown
    assert [len(t["cells"]) for t in facts["tables"]] == [len(t.cells) for t in tables()]
    symmetric = next(t for t in facts["tables"] if t["name"] == "Patches of the same side")
    assert symmetric["reproduced_by"] == ["patches196"]
    assert len(facts["inconsistencies"]) > 20
    with pytest.raises(UserError, match="--markdown"):
        paper_text(as_json=True, as_markdown=True)


def test_no_torch_is_needed_for_it() -> None:
    code = "import accelssl.train.paper.paper_pages, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
