"""The report says what the run's folder holds: no more, and nothing else."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelssl.errors import UserError
from accelssl.train.report.history import read_history
from accelssl.train.report.report import render, write_report

CONFIG: dict[str, Any] = {
    "algo": "simclr",
    "model": "vit_tiny_patch16_224",
    "size": 240,
    "budget": 400.0,
    "schedule": [{"until": 0.5, "p": 30, "drop": 0.5}, {"until": 1.0, "p": 20, "drop": 0.0}],
}


def step(number: int, **values: Any) -> dict[str, Any]:
    """Steps 1 to 4 at p30 d0.5 (1 s each), then p20 d0 (4 s each); ten images a step."""
    early = number <= 4
    cost = 1.0 if early else 4.5
    line: dict[str, Any] = {
        "kind": "step",
        "step": number,
        "epoch": number / 10,
        "images": 10 * number,
        "spent": 10.0 * number if early else 40.0 + 45.0 * (number - 4),
        "loss": 5.0 - number / 10,
        "lr": 1e-3,
        "p": 30 if early else 20,
        "drop": 0.5 if early else 0.0,
        "keep": 32 if early else 144,
        "sample_cost": cost,
        "elapsed_s": 1.0 * number if early else 4.0 + 4.0 * (number - 4),
        "images_per_s": 10.0 if early else 2.5,
        "units_per_s": cost * 10,
    }
    return line | values


END = {"kind": "end", "step": 12, "spent": 400.0, "elapsed_s": 36.0, "reason": "budget"}
FULL = [step(number) for number in range(1, 13)] + [END]


def evaluation(number: int, nn1: float) -> dict[str, Any]:
    line = step(number)
    return {
        "kind": "eval",
        "step": number,
        "spent": line["spent"],
        "elapsed_s": line["elapsed_s"],
        "nn1": nn1,
        "knn20": nn1 + 1,
        "seconds": 2.0,
    }


def make_run(
    run: Path, lines: list[dict[str, Any]], config: dict[str, Any] = CONFIG, tail: str = ""
) -> Path:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps(config))
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return run


def add_pictures(run: Path, keep: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Two views of three pictures of 60 pixels, white; p 20 with four of nine patches kept."""
    crops = np.full((2, 3, 60, 60, 3), 255, np.uint8)
    crops[..., 1:] = 0
    kept = np.broadcast_to(np.array([0, 2, 4, 8]), (2, 3, 4)) if keep is None else keep
    np.savez(run / "pictures.npz", crops=crops, p=np.array([20]), keep_0=kept)
    return crops


class Reader(HTMLParser):
    """Collects addresses, ids, svg elements' count, table rows and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.in_cell:
            self.rows[-1][-1] += data


def read(run: Path) -> Reader:
    reader = Reader()
    reader.feed(write_report(run).read_text(encoding="utf-8"))
    return reader


def test_costs_per_stage_are_what_the_log_says(tmp_path: Path) -> None:
    baseline = {"kind": "baseline", "images_per_s": 1.25, "sample_cost": 7.0}
    rows = read(make_run(tmp_path, [baseline, *FULL])).rows
    by_name = {row[0]: row for row in rows}
    # 4 steps of 10 images in 4 s for 40 units; 8 steps of 10 images in 32 s for 360 units.
    x = "\N{MULTIPLICATION SIGN}"
    assert by_name["1"] == [
        "1", "30", "0.5", "32", "1.000", "10.0%", "40", "4.0 s", "10", "10", f"7.00{x}", f"8.00{x}",
    ]  # fmt: skip
    assert by_name["2"] == [
        "2", "20", "0", "144", "4.500", "90.0%", "80", "32 s", "2.5", "11.2", f"1.56{x}",
        f"2.00{x}",
    ]  # fmt: skip
    # 120 images, 400 units, 36 s: 3.333 units and 3.333 images/s.
    assert by_name["whole run"] == [
        "whole run", "", "", "", "3.333", "100.0%", "120", "36 s", "3.33", "11.1", f"2.10{x}",
        f"2.67{x}",
    ]  # fmt: skip


def tiles(run: Path) -> dict[str, str]:
    """Return the text of each tile by the tile's name."""
    page = write_report(run).read_text(encoding="utf-8")
    cards = page.split('<div class="card tile"><div class="name">')[1:]
    named = (card.split("</div>", 1) for card in cards)
    return {name: re.sub("<.*?>|\n", "", text) for name, text in named}


def test_counted_and_realised_speed_ups_have_their_own_tiles(tmp_path: Path) -> None:
    """120 images cost 400 units (3.33 each, 7 uncompressed) and 36 s (3.33 images/s, 1.25)."""
    baseline = {"kind": "baseline", "images_per_s": 1.25, "sample_cost": 7.0}
    shown = tiles(make_run(tmp_path, [baseline, *FULL]))
    x = "\N{MULTIPLICATION SIGN}"
    counted, realised = (shown[f"{kind} speed-up"] for kind in ("counted", "realised"))
    assert counted.startswith(f"2.10{x}7 units an image uncompressed, 3.33 here")
    assert realised.startswith(f"2.67{x}1.25 images/s uncompressed, 3.33 here")


def test_each_accuracy_is_in_the_tile_of_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL)
    found = {"trained": {"nn1": 61.3, "knn20": 60.0}, "untrained": {"nn1": 12.0, "knn20": 13.0}}
    (run / "evaluation.json").write_text(json.dumps(found))
    shown = tiles(run)
    nn1, knn20 = shown["nearest neighbour (nn1)"], shown["20 nearest neighbours (knn20)"]
    assert nn1.startswith("61.3%trained61.3%untrained12.0%")
    assert knn20.startswith("60.0%trained60.0%untrained13.0%")


def test_realised_speed_up_is_never_guessed(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL)
    page = read(run)
    assert {row[-1] for row in page.rows if row[0] in ("1", "2", "whole run")} == {"not measured"}
    assert "--patch 16 --drop 0" in page.text


def test_a_run_is_over_only_while_its_end_is_the_last_word(tmp_path: Path) -> None:
    assert read_history(make_run(tmp_path, FULL)).ended == "budget"
    stopped = {**END, "reason": "interrupted"}
    assert "interrupted" in read(make_run(tmp_path, [*FULL[:5], stopped])).text
    resumed = [*FULL[:5], stopped, {"kind": "resume", "step": 5, "spent": 85.0}, *FULL[5:7]]
    assert read_history(make_run(tmp_path, resumed)).ended is None
    assert "no end" in read(tmp_path).text


@pytest.mark.parametrize("tail", ['{"kind": "step", "st', '{"kind": "step", "step": 6}\n', "7\n"])
def test_a_cut_line_is_left_out_and_named(tmp_path: Path, tail: str) -> None:
    run = make_run(tmp_path, FULL[:5], tail=tail)
    history = read_history(run)
    assert (len(history.steps), history.unreadable_lines) == (5, 1)
    assert "could not be read, and are left out: 1." in read(run).text


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    page = read(tmp_path)
    assert "no step has been logged yet" in page.text
    assert "svg" not in page.tags
    assert "vit_tiny_patch16_224" in page.text


def test_stages_are_named_by_patch_side_drop_and_keep(tmp_path: Path) -> None:
    text = read(make_run(tmp_path, FULL)).text
    assert "1: p30 d0.5, keep 32; 2: p20 d0, keep 144" in text


def test_missing_evaluations_are_said_to_be_missing(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, FULL))
    assert "not evaluated" in page.text
    assert "No evaluation was logged during training" in page.text
    assert page.tags.count("svg") == 4


def test_final_accuracy_is_evaluation_json_and_else_the_last_evaluation(tmp_path: Path) -> None:
    lines = [*FULL[:4], evaluation(4, 40.0), *FULL[4:], evaluation(12, 55.5)]
    run = make_run(tmp_path, lines)
    assert "for 55.5% of the validation pictures" in read(run).text
    found = {"trained": {"nn1": 61.3, "knn20": 60.0}, "untrained": {"nn1": 12.0}, "pixels": {}}
    (run / "evaluation.json").write_text(json.dumps({**found, "bank": 1000, "queries": 300}))
    text = read(run).text
    assert "for 61.3% of the validation pictures" in text
    assert "(an untrained network 12.0%)" in text
    (run / "evaluation.json").write_text(json.dumps({**found, "step": 4}))
    assert "for 55.5% of the validation pictures" in read(run).text
    (run / "evaluation.json").write_text(json.dumps({**found, "bank": 1000, "queries": 300}))
    assert "300 validation pictures are compared with 1,000" in read(run).text


def test_accuracies_of_an_earlier_step_are_told_to_be_that(tmp_path: Path) -> None:
    run, found = make_run(tmp_path, FULL), {"trained": {"nn1": 61.3, "knn20": 60.0}}
    for step_of_it, is_told in ((8, True), (12, False)):
        (run / "evaluation.json").write_text(json.dumps({**found, "step": step_of_it}))
        text = read(run).text
        assert ("; at step 8 of 12, for 61.3% of the" in text) == is_told
        assert ("at step 8 of 12, nearest neighbour (nn1)" in text) == is_told
        assert ("until accelssl evaluate runs again" in text) == is_told
    (run / "evaluation.json").write_text(json.dumps({**found, "step": 0}))
    assert "; at step 0 of 12, for 61.3% of the" in read(run).text
    (run / "evaluation.json").write_text(json.dumps(found))
    assert "at step" not in read(run).text
    logged = make_run(tmp_path / "logged", [*FULL[:4], evaluation(4, 40.0), *FULL[4:]])
    assert "; at step 4 of 12, for 40.0% of the" in read(logged).text


@pytest.mark.parametrize("value", ["NaN", "null", "Infinity"])
def test_a_loss_that_is_no_number_is_named_and_the_rest_drawn(tmp_path: Path, value: str) -> None:
    run = make_run(tmp_path, FULL)
    log = (run / "log.jsonl").read_text().replace('"loss": 4.3', f'"loss": {value}')
    (run / "log.jsonl").write_text(log)
    page = read(run)
    assert "not a finite number in 1 of 12 logged steps, first at step 7." in page.text
    assert page.tags.count("svg") == 4


def test_a_run_of_one_step_and_no_seconds_is_drawn(tmp_path: Path) -> None:
    page = read(make_run(tmp_path, [step(1, elapsed_s=0.0, loss=None, lr=None)]))
    assert page.tags.count("svg") == 4


def test_text_of_the_user_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>&<b>'
    config = CONFIG | {"model": evil, "algo": evil, "data": evil, evil: {"a": [evil]}}
    lines = [*FULL[:5], {**END, "reason": evil}]
    run = make_run(tmp_path, lines, config)
    environment = {"command": evil, "device": evil, evil: evil}
    (run / "environment.json").write_text(json.dumps(environment))
    page = read(run)
    assert not {"script", "b"} & set(page.tags)
    assert page.text.count(evil) >= 8


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path, [*FULL, evaluation(12, 50.0)])
    add_pictures(run)
    page = read(run)
    assert page.tags.count("svg") == 6
    assert page.tags.count("img") == 6
    inside = [address.split(":")[0] for address in page.addresses if address.startswith("data:")]
    assert len(inside) == 6
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        assert address.startswith(("data:image/", "#")), address
        assert not address.startswith("#") or address[1:] in page.ids
    text = (run / "report.html").read_text()
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert {"script", "link", "iframe"}.isdisjoint(page.tags)


def test_the_same_folder_gives_the_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL)
    add_pictures(run)
    assert render(read_history(run)) == render(read_history(run))


def test_unusable_pictures_are_named_and_the_rest_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL)
    (run / "pictures.npz").write_bytes(b"PK\x03\x04 cut")
    assert "pictures.npz cannot be shown" in read(run).text
    add_pictures(run, keep=np.full((2, 3, 4), 9))
    assert "names a patch outside the 9 of a crop" in read(run).text


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "nothing")


def test_a_report_is_replaced_and_leaves_no_draft(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL[:3])
    (run / "report.html").write_text("old")
    path = write_report(run)
    assert path == run / "report.html"
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert {p.name for p in run.iterdir()} == {"config.json", "log.jsonl", "report.html"}


def test_a_report_that_cannot_be_written_is_an_error_of_the_user(tmp_path: Path) -> None:
    run = make_run(tmp_path, FULL[:3])
    (run / "report.html").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_report(run)
    assert {p.name for p in run.iterdir()} == {"config.json", "log.jsonl", "report.html"}


def test_the_report_loads_neither_torch_nor_pyplot() -> None:
    program = (
        "import sys, accelssl.train.report.report; "
        "print([m for m in ('torch', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
