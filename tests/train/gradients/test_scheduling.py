"""From an analysis to a schedule and its plots: ties, costs that rise, what train takes."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.train.config.schedule import read_schedule
from accelssl.train.gradients.choose import chosen_cells, schedule_of
from accelssl.train.gradients.plot import error_figure, is_normalised, plot
from accelssl.train.gradients.record import AnalysisRecord, read_record, readable
from accelssl.train.gradients.scheduling import plan_schedule
from accelssl.train.methods.moco import MoCoMethod

SIDES, DROPS = (16, 30, 48), (0.0, 0.5)
CELLS = [Compression(p, drop) for p, drop in product(SIDES, DROPS)]
COSTS = {cell: MoCoMethod(size=240).sample_cost(cell) for cell in CELLS}
CHEAP_TO_DEAR = sorted(CELLS, key=lambda cell: COSTS[cell])


def analysis(
    folder: Path,
    errors: Sequence[dict[Compression, float]],
    *,
    reach: float = 0.01,
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    norm2: float | None = 2.0,
) -> Path:
    """A file with these CA-MSE; those that are not named have 9."""
    stages: list[dict[str, Any]] = []
    for share, found in zip(shares, errors, strict=True):
        cells = []
        for cell in CELLS:
            value = found.get(cell, 9.0)
            triple = [value, value - reach, value + reach]
            figures = {"ca_mse": triple, "bias2": [value / 2, 0.0, value], "variance": triple}
            divided = {
                name: [None if norm2 is None else x / norm2 for x in each]
                for name, each in figures.items()
            }
            about = {"p": cell.p, "drop": cell.drop, "cost": COSTS[cell], "cost_share": 0.1}
            cells.append(about | figures | {"normalised": divided})
        stages.append({"share": share, "weights": f"digest at {share}", "cells": cells})
    facts = {"algo": "moco", "model": "vit_tiny_patch16_224", "batch": 512}
    facts |= {"run": "/home/me/run", "data": "s3://bucket/sets/in100/"}
    made = {"date": "2026-11-28", "versions": {"torch": "2.11"}}
    path = folder / "camse.json"
    path.write_text(readable({"made": made, "facts": facts, "stages": stages}))
    return path


def best(*cells: Compression) -> list[dict[Compression, float]]:
    """At each stage one cell is best by far."""
    return [{cell: 1.0} for cell in cells]


def chosen(record: AnalysisRecord, **options: bool) -> list[Compression]:
    return [cell.cell for cell in chosen_cells(record, **options)]


def test_each_stage_takes_its_best_and_changes_half_way_between_checkpoints(
    tmp_path: Path,
) -> None:
    p48, p30 = Compression(48, 0.5), Compression(30, 0.5)
    p16 = Compression(16, 0.0)
    record = read_record(analysis(tmp_path, best(p48, p48, p30, p16, p16)))
    schedule = schedule_of(record, chosen_cells(record))
    assert [(s.until, s.compression) for s in schedule.stages] == [
        (0.375, p48),
        (0.625, p30),
        (1.0, p16),
    ]


def test_all_five_boundaries_are_those_of_the_paper(tmp_path: Path) -> None:
    record = read_record(analysis(tmp_path, best(*CHEAP_TO_DEAR[:5])))
    ends = [stage.until for stage in schedule_of(record, chosen_cells(record)).stages]
    assert ends == [0.125, 0.375, 0.625, 0.875, 1.0]


def test_of_cells_whose_intervals_overlap_the_cheapest_wins(tmp_path: Path) -> None:
    dear, middle, cheap = CHEAP_TO_DEAR[4], CHEAP_TO_DEAR[2], CHEAP_TO_DEAR[0]
    errors = [{dear: 1.0, middle: 1.019, cheap: 1.021}]
    record = read_record(analysis(tmp_path, errors, shares=[0.0]))
    assert chosen(record) == [middle]
    record = read_record(analysis(tmp_path, errors, shares=[0.0], reach=0.02))
    assert chosen(record) == [cheap]


def test_costs_only_rise_by_what_gives_away_least_unless_they_may_fall(tmp_path: Path) -> None:
    """A middle stage alone says dear: the cheap one beside it costs it less than the last two
    would lose by following."""
    cheap, dear = CHEAP_TO_DEAR[0], CHEAP_TO_DEAR[5]
    errors = [{cheap: 1.0}, {dear: 1.0, cheap: 1.5}, {cheap: 1.0}, {cheap: 1.0}, {dear: 1.0}]
    record = read_record(analysis(tmp_path, errors))
    assert chosen(record, rises=False) == [cheap, dear, cheap, cheap, dear]
    assert chosen(record) == [cheap, cheap, cheap, cheap, dear]
    errors = [{dear: 1.0}, *best(cheap, dear, dear, dear)]
    record = read_record(analysis(tmp_path, errors))
    costs = [COSTS[cell] for cell in chosen(record)]
    assert costs == sorted(costs)


def test_an_interpolated_schedule_goes_by_degrees_through_cells_of_the_grid(
    tmp_path: Path,
) -> None:
    cheap, dear = CHEAP_TO_DEAR[0], CHEAP_TO_DEAR[5]
    falling = {cell: 1.0 + 0.1 * place for place, cell in enumerate(CHEAP_TO_DEAR)}
    rising = {cell: 2.0 - 0.1 * place for place, cell in enumerate(CHEAP_TO_DEAR)}
    record = read_record(analysis(tmp_path, [falling, rising], shares=[0.0, 1.0], reach=1e-6))
    assert chosen(record) == [cheap, dear]
    stages = schedule_of(record, chosen_cells(record), "interpolated").stages
    costs = [COSTS[stage.compression] for stage in stages]
    assert len(stages) > 2 and costs == sorted(costs) and stages[-1].until == 1.0
    at = [schedule_of(record, chosen_cells(record), "interpolated").at(x) for x in (0.1, 0.6)]
    for stage, part in zip(at, (0.125, 0.625), strict=True):
        target = (1 - part) * log(COSTS[cheap]) + part * log(COSTS[dear])
        off = [abs(log(COSTS[cell]) - target) for cell in CELLS]
        assert abs(log(COSTS[stage.compression]) - target) <= sorted(off)[1]


def accelssl(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["accelssl", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_the_command_writes_what_a_run_takes_and_what_it_was_chosen_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = analysis(tmp_path, best(*CHEAP_TO_DEAR[:5])), tmp_path / "schedule.json"
    code = accelssl(monkeypatch, "schedule", str(file), "--budget", "10M", "--out", str(out))
    assert code in (0, None)
    schedule, content = read_schedule(out), json.loads(out.read_text())
    assert [stage.compression for stage in schedule.stages] == CHEAP_TO_DEAR[:5]
    assert content["method"] == "moco" and content["analysis"]["batch"] == 512
    assert (content["analysis"]["run"], content["analysis"]["data"]) == ("run", "in100")
    assert content["made"] == {"date": "2026-11-28", "versions": {"torch": "2.11"}}
    assert [each["weights"] for each in content["chosen"]][1] == "digest at 0.25"
    assert content["values"][1]["ca_mse"][str(CHEAP_TO_DEAR[1])] == 1.0
    spent = sum(
        512 * COSTS[stage.compression] * steps
        for stage, steps in zip(schedule.stages, content["steps"], strict=True)
    )
    assert 10e6 <= spent < 10e6 + 512 * 5
    assert f"--schedule {out}" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert max(map(len, lines)) < 700 and len(lines) > 15


def test_stages_at_which_an_analysis_tells_nothing_apart_are_named_with_the_remedy(
    tmp_path: Path,
) -> None:
    cheap = CHEAP_TO_DEAR[0]
    all_alike: dict[Compression, float] = {}
    file = analysis(tmp_path, [all_alike, {cheap: 1.0}, all_alike], shares=(0.0, 0.5, 1.0))
    told = plan_schedule(file, "1k", tmp_path / "schedule.json").splitlines()
    (said,) = (line for line in told if "all compressions are" in line)
    assert said.startswith("at 0%, 100% all compressions are") and "more --samples" in said
    file = analysis(tmp_path, [{cheap: 1.0}, all_alike | {cheap: 9.1}], shares=(0.0, 1.0))
    assert "all compressions are" not in plan_schedule(file, "1k", tmp_path / "other.json")


def test_a_schedule_that_is_there_is_replaced_with_force_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = analysis(tmp_path, best(*CHEAP_TO_DEAR[:5])), tmp_path / "mine.json"
    out.write_text("by hand")
    words = ("schedule", str(file), "--budget", "10M", "--out", str(out))
    assert accelssl(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert f"{out} exists already" in said and "--force" in said
    assert out.read_text() == "by hand"
    assert accelssl(monkeypatch, *words, "--force") in (0, None)
    assert json.loads(out.read_text())["stages"]


def test_plots_are_a_png_and_a_page_that_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = analysis(tmp_path, best(*CHEAP_TO_DEAR[:5]))
    assert accelssl(monkeypatch, "plot", str(file), "--out", str(tmp_path / "errors")) in (0, None)
    with Image.open(tmp_path / "errors.png") as picture:
        assert picture.width > 600 and picture.height > 400
    page = (tmp_path / "errors.html").read_text()
    assert page.count("<table") == 6 and "<svg" in page and "25% of the budget" in page
    assert 'src="http' not in page and "<link" not in page and "<script" not in page


def test_the_heat_maps_hold_the_figures_and_a_frame_about_the_chosen_cell(tmp_path: Path) -> None:
    cell = Compression(30, 0.5)
    record = read_record(analysis(tmp_path, best(cell, cell, cell, cell, cell)))
    figure = error_figure(record)
    assert len(figure.axes) == 3 * 5
    for row, expected in enumerate(("0.5", "0.25", "0.05")):
        axes = figure.axes[5 * row]
        column, line = SIDES.index(cell.p), DROPS.index(cell.drop)
        (text,) = [t for t in axes.texts if t.get_position() == (column, line)]
        assert text.get_text() == expected  # divided by ||G||^2 = 2; variance times its share
        (frame,) = axes.patches
        assert frame.get_xy() == (column - 0.5, line - 0.5)  # type: ignore[attr-defined]


def test_figures_stay_as_they_are_where_the_gradients_length_is_not_known(tmp_path: Path) -> None:
    errors = best(*CHEAP_TO_DEAR[:5])
    errors[0][CHEAP_TO_DEAR[3]] = -0.25
    file = analysis(tmp_path, errors, norm2=None)
    assert not is_normalised(read_record(file))
    png, html = plot(file)
    assert png.exists() and "not divided by" in html.read_text()
    html.write_text("theirs")
    png.unlink()
    with pytest.raises(UserError, match=r"html exists already.*--force"):
        plot(file)
    assert html.read_text() == "theirs" and not png.exists()
    plot(file, replaces=True)
    assert png.exists() and "not divided by" in html.read_text()


@pytest.mark.parametrize("text", ["[]", "{}", '{"facts": {}, "stages": []}', "no JSON", None])
def test_a_file_that_is_no_analysis_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "camse.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match="no gradient analysis"):
        read_record(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content["facts"].update(batch=0), "batch 0"),
        (lambda content: content["facts"].update(batch="512"), "batch no whole number"),
        (lambda content: content["facts"].pop("algo"), "it has no 'algo'"),
        (lambda content: content["stages"].reverse(), "the shares"),
        (lambda content: content["stages"][1].update(share=0.0), "the shares"),
        (lambda content: content["stages"][1]["cells"].pop(), "not the same"),
        (lambda content: content["stages"][1]["cells"][2].update(cost=0), "makes no sense"),
        (lambda content: content["stages"][1]["cells"][2].update(cost=10**400), "int too large"),
        (
            lambda content: content["stages"][1]["cells"][2].update(ca_mse=[math.nan] * 3),
            "makes no sense",
        ),
    ],
)
def test_an_analysis_that_was_edited_into_nonsense_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = analysis(tmp_path, best(Compression(30, 0.5), Compression(16, 0.0)), shares=(0.0, 1.0))
    read_record(path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"no gradient analysis.*{reason}"):
        read_record(path)


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    file = analysis(tmp_path, best(Compression(30, 0.5)), shares=(0.0,))
    nowhere = tmp_path / "nowhere" / "file"
    with pytest.raises(UserError, match=r"nowhere/file cannot be written .*--out"):
        plan_schedule(file, "1k", nowhere)
    with pytest.raises(UserError, match=r"nowhere/file\.png.* cannot be written .*--out"):
        plot(file, nowhere)


def test_what_is_nested_without_end_is_refused_by_name(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"deep.json cannot be read: it is nested too deeply"):
        read_schedule(deep)
    with pytest.raises(UserError, match=r"deep.json is no gradient analysis"):
        read_record(deep)


def test_an_end_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(f'[{{"until": {10**400}, "p": 16, "drop": 0}}]')
    with pytest.raises(UserError, match="end at"):
        read_schedule(tmp_path / "s.json")


@pytest.mark.parametrize("text", ['{"stages": 3}', "{}", '{"stages": [{"p": 16}]}'])
def test_an_object_without_a_list_of_stages_is_no_schedule(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match="not a list of stages"):
        read_schedule(tmp_path / "s.json")
