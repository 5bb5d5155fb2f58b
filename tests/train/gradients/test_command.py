"""accelssl analyze-gradients: what it finds, goes on with, shares among ranks and refuses."""

import json
import shlex
import sys
from dataclasses import replace
from datetime import date
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.loader import Loader
from accelssl.shards.shard_set import ShardSet
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Stage, constant
from accelssl.train.gradients import command
from accelssl.train.gradients.analysis import sums_of
from accelssl.train.gradients.checkpoints import kept_at
from accelssl.train.gradients.command import AnalysisOptions, analyze_gradients
from accelssl.train.gradients.gradient import Gradient
from accelssl.train.gradients.grid import Item, items_of
from accelssl.train.gradients.record import CellFolder, read_record
from accelssl.train.loop import train
from accelssl.train.objective import build
from accelssl.train.session import loader_options, run_views, start
from tests import small_vit
from tests.train.any_run import CPU, config_on

QUICK = AnalysisOptions(checkpoints="0,1", sides="48", drops="0,.5", samples=18, subbatch=4)
CELLS = (Compression(48, 0.0), Compression(48, 0.5))
PATCHES_20 = constant(Compression(20, 0.0))


@pytest.fixture(scope="module")
def run(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of MoCo, for six steps, with the checkpoints of half and all of its budget."""
    run = tmp_path_factory.mktemp("analysed") / "run"
    config = config_on(
        shard_dir, "moco", model=small_vit.NAME, size=96, budget=3.0, keep_at=(0.5, 1.0)
    )
    train(start(config, run, CPU), run)
    return run


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an analysis in one go writes."""
    out = tmp_path_factory.mktemp("whole") / "camse.json"
    line = analyze_gradients(run, None, out, QUICK, "cpu")
    assert line is not None and line.startswith(f"{out}: ")
    assert [path.name for path in out.parent.iterdir()] == ["camse.json"]
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def test_the_figures_are_those_of_the_checkpoints_gradients(
    run: Path, shard_set: ShardSet, whole: dict[str, Any]
) -> None:
    config = read_config(run / "config.json")
    state, objective = checkpoint.load(run, name="checkpoint-at-1.pt"), build(config)
    objective.load_state_dict(state.objective)
    gradient = Gradient(objective, 1.0, "fp32")
    options = replace(loader_options(replace(config, seed=1), CPU), batch=4)
    loader = Loader(shard_set.split("train"), run_views(config), options)
    asked = [config.compressions(Stage(1.0, cell)) for cell in (UNCOMPRESSED, CELLS[1])]
    rows = [
        [gradient(b.views).double().numpy() for b in loader.next_in_turn(asked)] for _ in range(4)
    ]
    G, g = (np.stack(each) for each in zip(*rows, strict=True))
    d = G - g
    bias2 = np.mean([d[a] @ d[b] for a, b in permutations(range(4), 2)])
    variance = 4 * g.var(0, ddof=1).sum()
    stage = whole["stages"][1]
    found = stage["cells"][1]
    assert (stage["share"], stage["progress"], stage["step"]) == (1.0, 1.0, state.step)
    assert (found["p"], found["drop"], found["cost"]) == (48, 0.5, pytest.approx(10 / 196))
    share = found["cost_share"]
    assert share == pytest.approx(10 / (8 * 4 * 36))
    for name, value in (
        ("bias2", bias2),
        ("variance", variance),
        ("ca_mse", bias2 + share * variance),
    ):
        assert found[name][0] == pytest.approx(value, rel=1e-3), name
        assert found[name][1] < found[name][0] < found[name][2]
    norm2 = np.mean([G[a] @ G[b] for a, b in permutations(range(4), 2)])
    assert stage["norm2"][0] == pytest.approx(norm2, rel=1e-3)
    divided = found["normalised"]["bias2"][0]
    assert divided == (pytest.approx(bias2 / norm2, rel=1e-3) if norm2 > 0 else None)


def test_a_record_says_what_it_is_of(run: Path, whole: dict[str, Any]) -> None:
    facts = whole["facts"]
    assert (facts["algo"], facts["estimator"], facts["samples"]) == ("moco", "paired", 16)
    assert facts["data_digest"] == checkpoint.load(run, at_a_glance=True).digest
    assert facts["budget"] == 3.0
    assert date.fromisoformat(whole["made"]["date"]) and "torch" in whole["made"]["versions"]
    assert facts["step_units"] == pytest.approx(8 * 4 * 36 / 196)
    cost = (4 * 36 + 4 * 4 + 3 * 2 + 4) / 196
    assert facts["units"] == pytest.approx(2 * 16 * cost)
    first, last = (stage["weights"] for stage in whole["stages"])
    assert len(first) == 64 and first != last


def test_what_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(
    run: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = tmp_path / "new" / "camse.json", 0
    one_by_one = replace(QUICK, cells_at_once=1)

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return sums_of(*given)

    monkeypatch.setattr(command, "sums_of", counted)
    with pytest.raises(KeyboardInterrupt):
        analyze_gradients(run, None, out, one_by_one, "cpu")
    assert not out.exists()
    analyze_gradients(run, None, out, one_by_one, "cpu")
    assert calls == 4 + 1 and json.loads(out.read_text()) == whole
    line = analyze_gradients(run, None, out, QUICK, "cpu")
    assert line == f"{out} is finished, nothing is left to do." and calls == 5
    assert [path.name for path in out.parent.iterdir()] == ["camse.json"]


def test_the_commands_that_are_said_to_be_next_run_as_they_are(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "of a run" / "camse.json"
    line = analyze_gradients(run, None, out, replace(QUICK, checkpoints="0"), "cpu")
    assert line is not None
    _, commands = line.split("next: ")
    monkeypatch.chdir(tmp_path)
    for command_line, leaves in zip(
        commands.splitlines(), (out.with_suffix(".png"), Path("schedule.json")), strict=True
    ):
        monkeypatch.setattr(sys, "argv", shlex.split(command_line))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code and leaves.exists()
    assert json.loads(Path("schedule.json").read_text())["budget"] == 3.0


def test_ranks_share_the_cells_and_the_last_one_writes_the_whole(
    run: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "camse.json"
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name, value in zip(names, ("2", "2", "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    lines = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert not out.exists()
        lines.append(analyze_gradients(run, None, out, QUICK, "cpu"))
    assert lines[0] is None and lines[1] and json.loads(out.read_text()) == whole


@pytest.mark.parametrize("world", [1, 2, 3, 8, 200])
def test_every_cell_is_one_ranks_and_ranks_have_about_the_same_to_do(world: int) -> None:
    cells = [Compression(p, drop) for p in (16, 20, 24, 30, 40, 48) for drop in (0.0, 0.5, 0.9)]
    costs, shares = [float(48 / cell.p) * (1 - cell.drop) for cell in cells], (0.0, 0.5, 1.0)
    parts = [items_of(shares, cells, costs, rank, world) for rank in range(world)]
    everything = [item for part in parts for item in part]
    assert everything == items_of(shares, cells, costs)
    price = dict(zip(cells, costs, strict=True))
    prices = [sum(price[item.cell] for item in part) for part in parts]
    assert max(prices) <= sum(prices) / world + max(costs)


def test_the_command_line_analyses_with_a_bank_and_the_papers_estimator(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "camse.json"
    words = f"analyze-gradients {run} --out {out} --checkpoints .5 --patches 16,48 --drops 0"
    more = "--samples 16 --subbatch 4 --negatives bank --estimator plugin --scope backbone"
    monkeypatch.setattr(sys, "argv", ["accelssl", *f"{words} {more} --device cpu".split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code in (0, None), capsys.readouterr().err
    record = read_record(out)
    assert record.facts["negatives_from_bank"] == 4 and record.facts["scope"] == "backbone"
    baseline, compressed = record.stages[0].cells
    assert baseline.raw["bias2"].value == 0 and compressed.raw["bias2"].value > 0
    assert compressed.raw["ca_mse"].value > compressed.raw["bias2"].value


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--checkpoints 0,.3", "0.3 of its budget, only at 0.000, 0.5"),
        ("--checkpoints 0,half", "--checkpoints 0,half"),
        ("--checkpoints nan", "--checkpoints nan"),
        ("--patches 16.5", "--patches 16.5"),
        ("--patches 20", "into 20 px patches.\nUse --patches 16,24,48, or some of them."),
        ("--patches 48 --drops .9", "leaves none"),
        ("--samples 12", "--samples 12"),
        ("--subbatch 64", "40 training images"),
        ("--subbatch 1", "--subbatch 1"),
        ("--estimator naive", "naive"),
        ("--negatives all", "--negatives all"),
        ("--scope head", "--scope head"),
        ("--negatives bank --subbatch 8", "8 have the 8 images"),
        ("--cells-at-once 0", "--cells-at-once 0"),
        ("--step-units none", "'none'"),
        ("--precision fp8", "'fp8'"),
        ("--out /proc/none/camse.json", "/proc/none/camse.json"),
    ],
)
def test_what_makes_no_sense_is_named_before_anything_is_done(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    named: str,
) -> None:
    usual = f"{run} --out {tmp_path / 'c.json'} --checkpoints 0 --subbatch 4 --device cpu"
    monkeypatch.setattr(sys, "argv", ["accelssl", *f"analyze-gradients {usual} {words}".split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and named in error, error
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_no_uncompressed_network_is_refused_with_sizes_that_have_one(
    shard_dir: Path, tmp_path: Path
) -> None:
    def run_of(size: int) -> Path:
        run = tmp_path / f"{size}"
        run.mkdir()
        config = config_on(shard_dir, size=size, budget=99.0, schedule=PATCHES_20)
        (run / "config.json").write_text(json.dumps(config.to_json()))
        return run

    options = replace(QUICK, checkpoints="0.5", sides=None)
    with pytest.raises(UserError, match="the uncompressed network") as refused:
        analyze_gradients(run_of(120), None, tmp_path / "c.json", options, "cpu")
    assert "120 px cannot be cut into 16 px patches" in refused.value.what
    assert "this run cannot be analysed" in refused.value.what
    sizes = [word.strip(",") for word in refused.value.remedy.split() if word.strip(",").isdigit()]
    assert sizes == ["112", "128", "240"]
    with pytest.raises(UserError, match=r"no checkpoint at 0\.5"):  # as far as that it comes
        analyze_gradients(run_of(240), None, tmp_path / "c.json", options, "cpu")


def test_a_share_takes_the_checkpoint_kept_for_it_or_one_that_is_near(run: Path) -> None:
    kept = kept_at(run, read_config(run / "config.json"), (0.0, 0.5, 0.55, 0.99))
    assert [each.name for each in kept][:3] == [None, *["checkpoint-at-0.5.pt"] * 2]
    assert 0.5 <= kept[1].progress == kept[2].progress < 0.57 and kept[3].progress == 1.0


def test_cells_of_other_weights_are_not_put_together(tmp_path: Path) -> None:
    parts = CellFolder(tmp_path / "camse.json", {"algo": "moco"})
    parts.prepare()
    for cell, weights in zip(CELLS, "xy", strict=True):
        parts.write(Item(0.0, cell), {"share": 0.0, "weights": weights}, {"norm2": [1, 0, 2]})
    assert not parts.assemble([0.0, 0.5], CELLS)
    with pytest.raises(UserError, match="different weights"):
        parts.assemble([0.0], CELLS)


def test_another_analysis_is_neither_gone_on_with_nor_replaced(
    run: Path, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "camse.json"
    out.write_text(json.dumps(whole))
    other = replace(QUICK, estimator="plugin")
    with pytest.raises(UserError, match="estimator paired, not plugin"):
        analyze_gradients(run, None, out, other, "cpu")
    assert json.loads(out.read_text()) == whole and len(list(tmp_path.iterdir())) == 1
