"""Which compression a run takes or keeps, for figures made by hand."""

import json
from typing import Any

import pytest

from accelssl.pipeline.compression import Compression
from accelssl.train.gradients.choose import chosen_cells, chosen_now, ties_of
from accelssl.train.gradients.decision import Decision, decision_of, schedule_of
from accelssl.train.gradients.record import AnalysisRecord, stage_of

CHEAP, MIDDLE, DEAR = Compression(48, 0.5), Compression(30, 0.5), Compression(16, 0.0)
COSTS = {CHEAP: 1.0, MIDDLE: 2.0, DEAR: 8.0}
Intervals = dict[Compression, tuple[float, float, float]]

# The dear one is the best in all of them.
CLEAR: Intervals = {CHEAP: (3, 2.9, 3.1), MIDDLE: (2, 1.9, 2.1), DEAR: (1, 0.9, 1.1)}
TWO_TIE: Intervals = {CHEAP: (3, 2.9, 3.1), MIDDLE: (1.3, 1.05, 1.5), DEAR: (1, 0.9, 1.1)}
# The cheap one overlaps the middle one, which is not the best.
CHAIN: Intervals = {CHEAP: (1.6, 1.3, 1.9), MIDDLE: (1.3, 1.05, 1.5), DEAR: (1, 0.9, 1.1)}
ALL_TIE: Intervals = {CHEAP: (3, -9, 15), MIDDLE: (2, -9, 13), DEAR: (1, -9, 11)}
TOUCH: Intervals = {CHEAP: (3, 1.1, 4.9), MIDDLE: (2, 1.9, 2.1), DEAR: (1, 0.9, 1.1)}
BELOW_0: Intervals = {CHEAP: (1, 0.5, 1.5), MIDDLE: (-0.1, -0.4, 0.2), DEAR: (-0.2, -0.3, -0.1)}


def stage_json(intervals: Intervals, share: float = 0.0) -> dict[str, Any]:
    cells = []
    for cell, triple in intervals.items():
        figures: dict[str, Any] = {name: list(triple) for name in ("ca_mse", "bias2", "variance")}
        about = {"p": cell.p, "drop": cell.drop, "cost": COSTS[cell], "cost_share": 0.1}
        divided = {name: [None, None, None] for name in figures}
        cells.append(about | figures | {"normalised": divided})
    return {"share": share, "weights": "1f3b", "norm2": [1.0, 0.9, 1.1], "cells": cells}


def decision(
    intervals: Intervals, current: Compression | None = None, share: float = 0.0
) -> Decision:
    content = stage_json(intervals, share)
    stage = stage_of(content)
    cell = chosen_now(stage, current).cell
    return Decision(stage, content, cell, current, 7, share + 0.01, 64, 8, 120.0, 1.5)


@pytest.mark.parametrize(
    ("intervals", "current", "expected"),
    [
        (CLEAR, None, DEAR),
        (CLEAR, CHEAP, DEAR),
        (CLEAR, DEAR, DEAR),
        (TWO_TIE, None, MIDDLE),
        (TWO_TIE, DEAR, DEAR),
        (TWO_TIE, MIDDLE, MIDDLE),
        (TWO_TIE, CHEAP, MIDDLE),
        (CHAIN, None, MIDDLE),
        (CHAIN, CHEAP, MIDDLE),
        (ALL_TIE, None, CHEAP),
        (ALL_TIE, MIDDLE, MIDDLE),
        (ALL_TIE, DEAR, DEAR),
        (TOUCH, None, CHEAP),
        (TOUCH, MIDDLE, CHEAP),
        (BELOW_0, None, MIDDLE),
        (BELOW_0, CHEAP, MIDDLE),
        (ALL_TIE, Compression(20, 0.9), CHEAP),  # not in the grid any more
    ],
)
def test_a_run_keeps_what_is_as_good_as_the_best_and_else_takes_the_cheapest_that_is(
    intervals: Intervals, current: Compression | None, expected: Compression
) -> None:
    assert chosen_now(stage_of(stage_json(intervals)), current).cell == expected


def test_where_intervals_overlap_that_of_the_difference_decides() -> None:
    """Without any one group of images the cheap cell stays as much above the dear one; the middle
    one's lead comes and goes."""
    content = stage_json(ALL_TIE)
    noise = [0.5, -0.3, 0.4, -0.6]
    of_cells = {
        CHEAP: [3.01 + x for x in noise],
        MIDDLE: [2 - x for x in noise],
        DEAR: [1 + x for x in noise],
    }
    for cell in content["cells"]:
        cell["without"] = of_cells[Compression(cell["p"], cell["drop"])]
    stage = stage_of(json.loads(json.dumps(content)))
    assert [tied.cell for tied in ties_of(stage)] == [MIDDLE, DEAR]
    assert chosen_now(stage).cell == MIDDLE
    assert chosen_now(stage, CHEAP).cell == MIDDLE
    assert chosen_now(stage, DEAR).cell == DEAR
    del content["cells"][0]["without"]  # what is not known of one cannot be compared
    assert chosen_now(stage_of(content)).cell == CHEAP


@pytest.mark.parametrize("intervals", [CLEAR, TWO_TIE, CHAIN, ALL_TIE, TOUCH, BELOW_0])
def test_the_first_choice_is_that_of_accelssl_schedule(intervals: Intervals) -> None:
    stage = stage_of(stage_json(intervals))
    (alone,) = chosen_cells(AnalysisRecord({}, (stage,)))
    assert chosen_now(stage) == alone


def test_a_decision_is_the_same_once_it_was_written_and_read() -> None:
    for made in (decision(TWO_TIE), decision(CLEAR, CHEAP, 0.25)):
        read = decision_of(json.loads(json.dumps(made.to_json())))
        assert read == made and read.chosen == made.chosen and read.why == made.why


def test_a_decision_says_why() -> None:
    best = "statistically equal to the best (p16 d0)"
    assert decision(TWO_TIE).why == f"the cheapest of 2 {best}"
    assert decision(ALL_TIE, MIDDLE).why == f"kept, one of 3 {best}"
    assert (
        decision(TWO_TIE, CHEAP).why
        == f"in place of p48 d0.5, which is worse: the cheapest of 2 {best}"
    )
    assert "512 images in each of 3 compressions, 120 units" in str(decision(CLEAR))


def test_a_schedule_changes_where_a_decision_does() -> None:
    made = [
        decision(ALL_TIE),
        decision(ALL_TIE, CHEAP, 0.2),
        decision(TWO_TIE, CHEAP, 1 / 3),
        decision(CLEAR, MIDDLE, 0.7),
    ]
    stages = [(s.until, s.compression) for s in schedule_of(made).stages]
    assert stages == [(1 / 3, CHEAP), (0.7, MIDDLE), (1.0, DEAR)]
    assert [s.until for s in schedule_of(made[:2]).stages] == [1.0]
