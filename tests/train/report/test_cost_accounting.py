"""Units, operations and seconds of a run, each summed alone and compared with the others."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accelssl.pipeline.compression import Compression
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.loop import train
from accelssl.train.report.cost_accounting import HEADS, closing_lines, drift_notes, price, rows
from accelssl.train.report.history import History, read_history
from accelssl.train.report.report import render
from accelssl.train.report.stage_costs import stage_runs, uncompressed
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.log.run_log import lines

LIGHT = {"p": 30, "drop": 0.5, "keep": 32, "sample_cost": 1.0, "image_flops": 2e9}
PLAIN = {"p": 16, "drop": 0.0, "keep": 225, "sample_cost": 7.0, "image_flops": 14e9}


def history_of(
    run: Path,
    stretches: list[tuple[dict[str, Any], float]],
    *events: dict[str, Any],
    steps: int = 20,
    start_up_s: float = 0.0,
) -> History:
    """`steps` of ten images for each (stage, seconds a unit); the first takes start_up_s longer."""
    written, images, spent, elapsed_s = list(events), 0, 0.0, 0.0
    for stage, unit_s in stretches:
        for step in range(steps):
            elapsed_s += 0.0 if step else start_up_s
            images, spent = images + 10, spent + 10 * stage["sample_cost"]
            elapsed_s += 10 * stage["sample_cost"] * unit_s
            clock = {"images": images, "spent": spent, "elapsed_s": elapsed_s}
            written.append({"kind": "step", "step": images // 10, "loss": 1.0, **stage, **clock})
    (run / "config.json").write_text(json.dumps({"algo": "dino", "size": 240}))
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    return read_history(run)


def notes_of(history: History) -> list[str]:
    stages = stage_runs(history)
    return drift_notes(stages, uncompressed(history, stages))


def test_a_unit_that_takes_a_tenth_longer_than_the_dearest_stages_is_told_of(
    tmp_path: Path,
) -> None:
    assert notes_of(history_of(tmp_path, [(LIGHT, 1.09), (PLAIN, 1.0)])) == []
    note, remedy = notes_of(history_of(tmp_path, [(LIGHT, 1.25), (PLAIN, 1.0)]))
    assert "accelssl bench-throughput" in remedy
    assert "p30 d0.5 took 1.25 times the time per unit" in note
    assert "(1.00 times the operations)" in note
    (note,) = notes_of(history_of(tmp_path, [(LIGHT, 0.8), (PLAIN, 1.0)]))
    assert "0.80 times" in note


def test_measured_uncompressed_training_is_what_units_are_priced_against(tmp_path: Path) -> None:
    measured = {"kind": "baseline", "images_per_s": 1 / 7, "sample_cost": 7.0, "image_flops": 7e9}
    (note,) = notes_of(history_of(tmp_path, [(LIGHT, 2.0)], measured))
    assert "2.00 times the time per unit of uncompressed training" in note
    assert "(2.00 times the operations)" in note


def test_start_up_is_no_drift(tmp_path: Path) -> None:
    even = history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 1.0)], start_up_s=1e4)
    assert notes_of(even) == []
    slower = history_of(tmp_path, [(LIGHT, 1.5), (PLAIN, 1.0)], start_up_s=1e4)
    note, _ = notes_of(slower)
    assert "1.50 times the time per unit of uncompressed training" in note
    assert stage_runs(slower)[0].training_s == pytest.approx(1e4 + 20 * 10 * 1.5)


def test_the_start_up_of_a_run_that_goes_on_is_none_either(tmp_path: Path) -> None:
    history = history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 1.0)])
    log = (tmp_path / "log.jsonl").read_text().splitlines()
    later = [json.loads(line) for line in log[10:]]
    resumed = [line | {"elapsed_s": line["elapsed_s"] + 1e4} for line in later]
    event = {"kind": "resume", "step": 10}
    written = [*log[:10], *(json.dumps(line) for line in [event, *resumed])]
    (tmp_path / "log.jsonl").write_text("".join(line + "\n" for line in written))
    again = read_history(tmp_path)
    assert len(again.steps) == len(history.steps) and again.resumes == (10.0,)
    light, plain = stage_runs(again)
    assert light.steady_s == pytest.approx(14 * 10) and light.steady_steps == 14
    assert plain.steady_s == pytest.approx(17 * 70)


def test_nothing_is_said_of_a_stage_of_few_steps(tmp_path: Path) -> None:
    few = history_of(tmp_path, [(LIGHT, 9.0), (PLAIN, 1.0)], steps=19)
    assert notes_of(few) == [] and "nan" not in render(few)
    measured = {"kind": "baseline", "images_per_s": 1 / 7, "sample_cost": 7.0}
    assert notes_of(history_of(tmp_path, [(LIGHT, 9.0)], measured, steps=2)) == []


def test_a_single_stage_with_nothing_beside_it_drifts_from_nothing(tmp_path: Path) -> None:
    assert notes_of(history_of(tmp_path, [(LIGHT, 5.0)])) == []


def test_each_ledger_adds_up_to_the_run(tmp_path: Path) -> None:
    history = history_of(tmp_path, [(LIGHT, 1.0), (PLAIN, 1.0)], steps=2)
    stages = stage_runs(history)
    table = rows(stages, uncompressed(history, stages))
    assert [row[0] for row in table] == ["p30 d0.5", "p16 d0", "all stages"]
    cells = dict(zip(HEADS, table[0], strict=True))
    assert cells["images"] == "20 (50.0%)"
    assert cells["units"] == "20 (12.5%)"
    assert cells["PFLOP"] == "0.00004 (12.5%)"
    assert dict(zip(HEADS, table[-1], strict=True))["units"] == "160 (100.0%)"


def test_a_log_without_operations_leaves_that_ledger_blank(tmp_path: Path) -> None:
    old = {key: value for key, value in LIGHT.items() if key != "image_flops"}
    history = history_of(tmp_path, [(old, 1.0), (PLAIN | {"image_flops": None}, 2.0)])
    stages = stage_runs(history)
    assert all(math.isnan(stage.flops) for stage in stages)
    table = rows(stages, uncompressed(history, stages))
    assert all("nan" not in cell for row in table for cell in row)
    assert "PFLOP" not in closing_lines(history)[0]
    assert "nan" not in render(history)


def test_no_step_is_nothing_to_close(tmp_path: Path) -> None:
    assert closing_lines(history_of(tmp_path, [])) == []


@pytest.mark.parametrize("algo", ["simclr", "moco", "dino"])
def test_a_run_logs_the_operations_that_torch_counts_in_its_steps(
    algo: str, shard_dir: Path, tmp_path: Path
) -> None:
    stages = (Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(40, 0.0)))
    extra: dict[str, Any] = {"n_local": 2, "local_size": 32, "prototypes": 32}
    config = config_on(shard_dir, algo, budget=12.0, **(extra if algo == "dino" else {}))
    config = replace(config, schedule=Schedule(stages))
    run = tmp_path / "run"
    session = start(config, run, CPU)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        train(session, run)
    session.loader.close()
    history = read_history(run)
    found = stage_runs(history)
    assert len(found) == 2
    assert sum(s.flops for s in found) == pytest.approx(counter.get_total_flops(), rel=1e-9)
    assert len(lines(run, "step")) == len(history.steps)
    assert "PFLOP" in closing_lines(history)[0]
    assert "Units, operations and seconds" in render(history)
    first = price(found[0])
    assert first is not None and first.unit_flops > 0
