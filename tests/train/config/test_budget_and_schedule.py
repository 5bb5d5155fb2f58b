"""Budget, learning rate and schedule: pure functions of what has been spent."""

import json
from pathlib import Path

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.train.config.budget import Budget, format_units, parse_units
from accelssl.train.config.schedule import Schedule, Stage, constant, from_json, read_schedule
from accelssl.train.optim.adamw import adamw, learning_rate


@pytest.mark.parametrize(
    ("text", "units"),
    [("0.2M", 2e5), ("104m", 104e6), ("50k", 5e4), ("2e5", 2e5), ("7", 7.0), (" 1G ", 1e9)],
)
def test_budgets_are_read_in_units(text: str, units: float) -> None:
    assert parse_units(text) == pytest.approx(units)


@pytest.mark.parametrize("text", ["", "M", "0", "-1k", "many", "nan", "inf", "1T"])
def test_what_is_no_amount_of_compute_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="Budget"):
        parse_units(text)


def test_a_budget_of_nothing_is_told_from_one_that_is_no_number() -> None:
    for text in ("0", "-1k", "0M"):
        with pytest.raises(UserError, match="buys nothing"):
            parse_units(text)
    with pytest.raises(UserError, match=r"5X.* k, M or G"):
        parse_units("5X")


def test_units_are_written_short() -> None:
    assert [format_units(u) for u in (104e6, 212_345, 950.0, 1.5e9)] == [
        "104M",
        "212k",
        "950",
        "1.5G",
    ]


def test_a_budget_ends_with_the_step_that_reaches_it() -> None:
    budget = Budget(100)
    steps = 0
    while not budget.is_spent:
        budget.charge(10, 1.5)
        steps += 1
    assert steps == 7 and budget.spent == 105 and budget.progress == 1


def test_a_budget_that_is_exactly_reached_is_spent() -> None:
    budget = Budget(30)
    budget.charge(10, 1.5)
    assert not budget.is_spent and not budget.after(5, 2.5).is_spent
    budget.charge(10, 1.5)
    assert budget.spent == 30 and budget.is_spent


def test_the_learning_rate_after_warm_up_is_one_minus_t_squared() -> None:
    for t, share in [(0, 1), (0.25, 0.9375), (0.5, 0.75), (0.75, 0.4375), (1, 0)]:
        assert learning_rate(0.2 + 0.8 * t, 2.0, 0.2) == pytest.approx(2 * share)
        assert learning_rate(t, 1.0, 0.0) == pytest.approx(share)


def test_the_learning_rate_rises_linearly_from_zero() -> None:
    rates = [learning_rate(progress, 3.0, 0.1) for progress in (0.0, 0.025, 0.05, 0.1)]
    assert rates == pytest.approx([0, 0.75, 1.5, 3.0])


def test_vectors_are_not_decayed_and_frozen_weights_are_left_out() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    module[0].bias.requires_grad_(False)
    decayed, plain = adamw(module, 0.3).param_groups
    assert [p.ndim for p in decayed["params"]] == [2] and decayed["weight_decay"] == 0.3
    assert [p.ndim for p in plain["params"]] == [1, 1] and plain["weight_decay"] == 0


def test_vectors_are_decayed_too_where_the_method_does_so() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    module[0].bias.requires_grad_(False)
    groups = adamw(module, 0.3, decays_vectors=True).param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3]
    assert sum(p.numel() for group in groups for p in group["params"]) == 16 + 4 + 4


def test_a_stage_lasts_until_its_end_and_the_last_for_ever() -> None:
    first, second = Compression(30, 0.5), Compression(16, 0.5)
    schedule = Schedule((Stage(0.6, first), Stage(1.0, second)))
    assert schedule.at(0).compression == schedule.at(0.599).compression == first
    assert schedule.at(0.6).compression == schedule.at(1.0).compression == second


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    schedule = Schedule((Stage(0.25, Compression(48, 0.25)), Stage(1.0, Compression(16, 0.0))))
    (tmp_path / "s.json").write_text(json.dumps(schedule.to_json()))
    assert read_schedule(tmp_path / "s.json") == schedule
    assert from_json(constant(Compression(30, 0.5)).to_json()) == constant(Compression(30, 0.5))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "3",
        "not json",
        '[{"until": 0.5, "p": 30, "drop": 0.5}]',
        '[{"until": 1.0, "p": 30}]',
        '[{"until": 1.0, "p": 31, "drop": 0}]',
        '[{"until": 1.0, "p": "30", "drop": 0}]',
        '[{"until": 1.0, "p": NaN, "drop": 0}]',
        "[null]",
        '[{"until": 0.7, "p": 30, "drop": 0}, {"until": 0.7, "p": 16, "drop": 0},'
        ' {"until": 1, "p": 16, "drop": 0}]',
        '[{"until": 0, "p": 30, "drop": 0}, {"until": 1, "p": 16, "drop": 0}]',
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError):
        read_schedule(tmp_path / "s.json")


def test_a_schedule_that_cannot_be_read_is_told_of_in_plain_words(tmp_path: Path) -> None:
    broken, image = tmp_path / "broken.json", tmp_path / "image.json"
    broken.write_text('[{"until": 1.0,\n "p": 30 "drop": 0}]')
    image.write_bytes(b"\xff\xd8\xff")
    for path, said in [
        (tmp_path / "none.json", "no such file or directory"),
        (tmp_path, "is a directory"),
        (broken, "not JSON from line 2, column 10 on"),
        (image, "not text"),
    ]:
        with pytest.raises(UserError, match=said) as refused:
            read_schedule(path)
        assert "Errno" not in refused.value.what and str(path) in refused.value.what
