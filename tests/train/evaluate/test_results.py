"""evaluation.json keeps what each protocol found on each set, and files of before still read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.train.evaluate.linear_presets import moco
from accelssl.train.evaluate.results import keep_result, own_result, read_results
from accelssl.train.report.history import read_history
from accelssl.train.report.report import write_report

OLD = {
    "trained": {"nn1": 40.0, "knn20": 45.0},
    "untrained": {"nn1": 10.0, "knn20": 12.0},
    "pixels": {"nn1": 11.0, "knn20": 13.0},
    "protocol": "nn",
    "bank": 900,
    "queries": 300,
    "step": 7,
    "data": "shards",
}


def found(protocol: str, digest: str, value: float, **more: Any) -> dict[str, Any]:
    scores = {"protocol": protocol, "digest": digest, "own": digest == "mine", "step": 7}
    return scores | {"value": value} | more


def kept(run: Path) -> list[tuple[str, str, float]]:
    return [(r["protocol"], r["digest"], r["value"]) for r in read_results(run)]


def test_protocols_and_sets_stand_side_by_side_and_the_newer_replaces_its_like(
    tmp_path: Path,
) -> None:
    assert read_results(tmp_path) == []
    for result in (
        found("nn", "mine", 1),
        found("linear", "mine", 2, preset="moco", crops="central"),
        found("linear", "mine", 3, preset="moco", crops="fresh"),
        found("linear", "mine", 4, preset="dino", crops="central"),
        found("nn", "other", 5),
        found("nn", "mine", 6),
        found("linear", "mine", 7, preset="moco", crops="central"),
    ):
        keep_result(tmp_path, result)
    assert kept(tmp_path) == [
        ("linear", "mine", 3),
        ("linear", "mine", 4),
        ("nn", "other", 5),
        ("nn", "mine", 6),
        ("linear", "mine", 7),
    ]
    assert own_result(read_results(tmp_path), "nn")["value"] == 6
    assert own_result(read_results(tmp_path), "finetune") == {}
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]


LINEAR: dict[str, Any] = {
    "preset": "moco",
    "crops": "central",
    "epochs": 90,
    "batch": 900,
    "train": 900,
    "resets_last_norm": False,
}


def linear(top1: float, *rates: float, **more: Any) -> dict[str, Any]:
    each = [{"rate": rate} for rate in rates or moco().rates]
    return found("linear", "mine", top1, trained={"top1": top1, "rates": each}, **LINEAR | more)


def finetune(top1: float, **more: Any) -> dict[str, Any]:
    settings = {"preset": "deit", "epochs": 150, "batch": 1024, "peak_lr": 1e-3}
    return found("finetune", "mine", top1, top1=top1, **settings | more)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (linear(1), linear(2, epochs=2)),
        (linear(1), linear(2, batch=8)),
        (linear(1), linear(2, 0.1, 1.0)),
        (linear(1), linear(2, resets_last_norm=True)),
        (finetune(1), finetune(2, epochs=2)),
        (finetune(1), finetune(2, batch=8)),
        (finetune(1), finetune(2, peak_lr=1e-2)),
    ],
)
def test_other_settings_stand_beside_and_the_same_take_the_place(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    again = one | {"value": 3.0, "step": 8}
    for result in (one, other, again):
        keep_result(tmp_path, result)
    assert read_results(tmp_path) == [other, again]
    # What a run is worth is what the preset as it is says, whatever was tried after it.
    keep_result(tmp_path, other)
    assert own_result(read_results(tmp_path), one["protocol"]) == again


def test_the_order_of_the_rates_is_no_setting(tmp_path: Path) -> None:
    for result in (linear(1, 0.1, 1.0), linear(2, 1.0, 0.1)):
        keep_result(tmp_path, result)
    assert read_results(tmp_path) == [linear(2, 1.0, 0.1)]


def test_a_report_has_the_presets_own_first_and_the_others_with_what_they_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    for result in (
        finetune(70, epochs=30, peak_lr=0.04),
        linear(10, 0.1, 1.0, epochs=2),
        linear(40, 3.0, batch=64, resets_last_norm=True),
        linear(60),
        finetune(80),
    ):
        keep_result(tmp_path, result)
    page = write_report(tmp_path).read_text()
    titles = re.findall(r"(?:linear probe|fine-tuned) \([^)]*\), top-1", page)
    assert titles == [
        "linear probe (moco, central crops), top-1",
        "linear probe (moco, central crops, 2 epochs, rates 0.1, 1), top-1",
        "linear probe (moco, central crops, batch 64, rate 3, last norm reset), top-1",
        "fine-tuned (deit), top-1",
        "fine-tuned (deit, 30 epochs, rate 0.01), top-1",
    ]
    values = re.findall(r'<div class="value">(\d+\.\d)', page)
    assert values == ["60.0", "10.0", "40.0", "80.0", "70.0"]


def test_another_set_does_not_replace_the_runs_own_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    keep_result(tmp_path, {**OLD, "digest": "mine", "own": True})
    other = {**OLD, "digest": "other", "own": False, "trained": {"nn1": 99.0, "knn20": 99.0}}
    keep_result(tmp_path, other)
    assert read_history(tmp_path).evaluation["trained"]["nn1"] == 40
    page = write_report(tmp_path).read_text()
    assert "40.0%" in page and "99.0%" not in page


def test_a_file_of_before_is_one_result_until_its_like_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "evaluation.json").write_text(json.dumps(OLD))
    assert read_results(tmp_path) == [OLD | {"own": True}]
    assert read_history(tmp_path).evaluation["trained"] == OLD["trained"]
    keep_result(tmp_path, found("linear", "mine", 1))
    keep_result(tmp_path, found("nn", "other", 2))
    assert own_result(read_results(tmp_path), "nn")["trained"] == OLD["trained"]
    keep_result(tmp_path, found("nn", "mine", 3))
    assert kept(tmp_path) == [("linear", "mine", 1), ("nn", "other", 2), ("nn", "mine", 3)]


@pytest.mark.parametrize("text", ["{", "[1]", '{"results": 3}', '{"results": [3]}'])
def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"evaluation\.json"):
        keep_result(tmp_path, found("nn", "mine", 1))
    assert path.read_text() == text


def test_linear_accuracy_of_the_own_set_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    scores = {"trained": {"top1": 61.27}, "untrained": {"top1": 20.14}}
    more: dict[str, Any] = {"preset": "moco", "crops": "central", **scores}
    keep_result(tmp_path, found("linear", "mine", 0, **more))
    keep_result(tmp_path, found("linear", "other", 0, **{**more, "trained": {"top1": 88.8}}))
    keep_result(tmp_path, found("finetune", "mine", 0, preset="deit", top1=77.73))
    page = write_report(tmp_path).read_text()
    assert "linear probe (moco, central crops), top-1" in page
    assert "61.3%" in page and "20.1%" in page and "88.8%" not in page
    assert "fine-tuned (deit), top-1" in page and "77.7%" in page
    assert "not evaluated" not in page and "optimistic" in page
