"""Counted and realised speed-ups come from measurements of the run, or are None."""

import json
from pathlib import Path
from typing import Any

import pytest

from accelssl.train.report.history import History, read_history
from accelssl.train.report.stage_costs import (
    counted_speed_up,
    realised_speed_up,
    stage_runs,
    uncompressed,
    whole_run,
)

LIGHT = {"p": 30, "drop": 0.5, "keep": 32, "sample_cost": 6 * 32 / 196}
PLAIN = {"p": 16, "drop": 0.0, "keep": 225, "sample_cost": 6 * 225 / 196}
BASELINE = {"kind": "baseline", "images_per_s": 2.0, "sample_cost": 7.0}


def history_of(
    run: Path,
    stretches: list[tuple[dict[str, Any], float]],
    algo: str = "simclr",
    before: tuple[dict[str, Any], ...] = (),
    convention: str = "patches196",
) -> History:
    """Two steps of ten images for each (compression, seconds a step)."""
    lines, images, spent, elapsed_s = list(before), 0, 0.0, 0.0
    for stage, step_s in stretches:
        for _ in range(2):
            images, elapsed_s = images + 10, elapsed_s + step_s
            spent += 10 * stage["sample_cost"]
            clock = {"images": images, "spent": spent, "elapsed_s": elapsed_s}
            lines.append({"kind": "step", "step": images // 10, **stage, **clock})
    config = {"algo": algo.split()[-1], "size": 240, "convention": convention}
    config["symmetric"] = algo.startswith("symmetric")
    (run / "config.json").write_text(json.dumps(config))
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_history(run)


def test_an_uncompressed_stage_of_the_run_is_a_measured_baseline(tmp_path: Path) -> None:
    history = history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 8.0)])
    light, plain = stage_runs(history)
    base = uncompressed(history, (light, plain))
    assert base.sample_cost == PLAIN["sample_cost"]
    assert base.images_per_s == pytest.approx(10 / 8)
    assert realised_speed_up(light, base) == pytest.approx(8.0)
    assert counted_speed_up(light, base) == pytest.approx(225 / 32)
    assert realised_speed_up(plain, base) == counted_speed_up(plain, base) == pytest.approx(1.0)


def test_a_logged_baseline_goes_before_a_stage_of_the_run(tmp_path: Path) -> None:
    history = history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 8.0)], before=(BASELINE,))
    base = uncompressed(history, stage_runs(history))
    assert (base.sample_cost, base.images_per_s) == (7.0, 2.0)


def test_a_baseline_of_the_environment_counts_where_the_log_has_none(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"baseline": BASELINE}))
    history = history_of(tmp_path, [(LIGHT, 1.0)])
    base = uncompressed(history, stage_runs(history))
    assert (base.sample_cost, base.images_per_s) == (7.0, 2.0)


@pytest.mark.parametrize(
    ("algo", "convention", "expected"),
    [
        ("simclr", "patches196", 6 * 225 / 196),
        ("simclr", "text197", 6 * 226 / 197),
        ("moco", "patches196", 4 * 225 / 196),
        ("symmetric moco", "patches196", 8 * 225 / 196),
        ("dino", "patches196", None),
        ("simclr", "words", None),
    ],
)
def test_a_run_without_uncompressed_images_counts_their_cost_but_not_their_rate(
    tmp_path: Path, algo: str, convention: str, expected: float | None
) -> None:
    history = history_of(tmp_path, [(LIGHT, 1.0)], algo, convention=convention)
    stages = stage_runs(history)
    base = uncompressed(history, stages)
    assert base.sample_cost == (None if expected is None else pytest.approx(expected))
    assert base.images_per_s is None
    assert realised_speed_up(stages[0], base) is None
    assert (counted_speed_up(stages[0], base) is None) == (expected is None)


def test_a_stage_that_comes_back_is_a_stage_of_its_own(tmp_path: Path) -> None:
    stages = stage_runs(history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 8.0), (LIGHT, 1.0)]))
    assert [(stage.p, stage.images, stage.training_s) for stage in stages] == [
        (30, 20, 2.0),
        (16, 20, 16.0),
        (30, 20, 2.0),
    ]


def test_the_whole_run_averages_over_images_and_not_over_stages(tmp_path: Path) -> None:
    whole = whole_run(stage_runs(history_of(tmp_path, [(LIGHT, 1.0), (LIGHT, 1.0), (PLAIN, 8.0)])))
    assert (whole.images, whole.training_s) == (60, 20.0)
    assert whole.images_per_s == pytest.approx(3.0)
    assert whole.sample_cost == pytest.approx(6 * (40 * 32 + 20 * 225) / 196 / 60)
    assert whole.units_per_s == pytest.approx(whole.sample_cost * 3.0)


def test_no_step_is_no_stage(tmp_path: Path) -> None:
    assert stage_runs(history_of(tmp_path, [])) == ()
