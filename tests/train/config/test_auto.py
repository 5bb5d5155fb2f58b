"""--schedule auto and default: what may be asked for, what it may cost, and what is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.auto import BEFORE, UNSAID, Auto, AutoOptions, read_auto
from accelssl.train.config.compression_options import settings_of
from accelssl.train.config.config import DEFAULT_COMPRESSION, TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.default_schedules import SHIPPED, default_schedule
from accelssl.train.config.schedule import Schedule, constant
from accelssl.train.gradients.grid import analysis_units, grid_of
from accelssl.train.gradients.sample_size import FEWEST_SUBBATCHES, MOST_SAMPLES, affordable
from accelssl.train.methods import METHODS

FLAT = '[{"until": 1.0, "p": 48, "drop": 0.5}]'


def config_of(algo: str = "moco", **options: Any) -> TrainConfig:
    chosen: dict[str, Any] = {"budget": 104e6, "schedule": BEFORE, "auto": Auto()} | options
    return TrainConfig(algo=algo, model="vit_base_patch16_224", data="shards", **chosen)


def accelssl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """What the command says when it refuses."""
    monkeypatch.setattr(sys, "argv", ["accelssl", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("share", "at", "said"),
    [
        (0.0, None, "--auto-share 0 makes no sense"),
        (1.5, None, "--auto-share 1.5 makes no sense"),
        (float("nan"), None, "--auto-share nan makes no sense"),
        (None, ".25,.5", "--auto-at 0.25,0.5 makes no sense"),
        (None, "0,.5,.5", "--auto-at 0,0.5,0.5 makes no sense"),
        (None, "0,.5,1", "--auto-at 0,0.5,1 makes no sense"),
        (None, "0,.75,.5", "--auto-at 0,0.75,0.5 makes no sense"),
        (None, "0,half", "--auto-at 0,half is no list of shares"),
        (None, "0,nan", "--auto-at 0,nan is no list of shares"),
        (None, "", "--auto-at  is no list of shares"),
    ],
)
def test_shares_and_points_that_make_no_sense_are_refused(
    share: float | None, at: str | None, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read_auto(AutoOptions(share, at))


def test_what_is_not_said_of_auto_is_as_usual() -> None:
    assert read_auto(UNSAID) == Auto(0.02, (0.0, 0.25, 0.5, 0.75))
    assert read_auto(AutoOptions(0.05, "0,.1")) == Auto(0.05, (0.0, 0.1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--auto-share 0.1", "--auto-share was given without --schedule auto"),
        ("--auto-at 0,.5 --patch 30", "--auto-at was given without --schedule auto"),
        ("--auto-patches 16,30", "--auto-patches was given without --schedule auto"),
        ("--auto-drops 0 --schedule FILE", "--auto-drops was given without --schedule auto"),
        ("--schedule auto --auto-patches 16,17", "--auto-patches 17 is no patch side"),
        ("--schedule auto --auto-drops 0,1", "--auto-drops 1 is not a fraction"),
        ("--schedule auto --patch 30", "--schedule and --patch or --drop were given together"),
        ("--schedule auto --drop 0.5", "--schedule and --patch or --drop were given together"),
        ("--schedule auto --size 50 --algo simclr", "(--size) cannot be cut into 16 px patches"),
        (
            "--schedule default --size 96",
            "cannot be cut into 20 px patches, which the default schedule of simclr (--schedule "
            "default) has.",
        ),
        ("--recipe simclr_demo --size 96", "30 px patches, which the recipe simclr_demo has."),
        ("--schedule ./auto", "The schedule auto cannot be read"),
        ("--schedule Auto", 'until": 1.0, "p": 16, "drop": 0.5}], or give auto or default.'),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "--data", "none", "--out", "none", "--budget", "1M", "--device", "cpu"]
    told = accelssl(monkeypatch, capsys, *run, *words.split())
    assert said in told and "Use --patch" not in told


def test_a_file_that_is_named_auto_is_reached_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "auto").write_text(FLAT)
    monkeypatch.chdir(tmp_path)
    read = settings_of((None, None, "./auto"), UNSAID, DEFAULT_COMPRESSION, "moco")
    assert read == {"schedule": constant(Compression(48, 0.5)), "auto": None}
    chosen = settings_of((None, None, "auto"), AutoOptions(0.1), DEFAULT_COMPRESSION, "moco")
    assert chosen == {"schedule": BEFORE, "auto": Auto(0.1)}


def test_a_plan_of_what_nobody_knows_yet_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("plan", "--data", "none", "--budget", "1M", "--device", "cpu", "--schedule")
    assert "is unknown before" in accelssl(monkeypatch, capsys, *words, "auto")
    assert "}], or give default." in accelssl(monkeypatch, capsys, *words, "Auto")


def test_a_configuration_with_auto_is_read_back(tmp_path: Path) -> None:
    config = config_of(auto=Auto(0.1, (0.0, 0.4)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()))
    assert read_config(path) == config
    assert json.loads(path.read_text())["schedule"] == "auto"


@pytest.mark.parametrize(
    "auto", [{"share": 0.1}, {"share": "0.1", "at": [0]}, {"share": 0.1, "at": 0}, "auto", [0.1]]
)
def test_a_configuration_whose_auto_is_damaged_is_refused(tmp_path: Path, auto: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of().to_json() | {"auto": auto}))
    with pytest.raises(UserError, match="is not the configuration of a run"):
        read_config(path)


def test_a_schedule_beside_auto_is_refused() -> None:
    with pytest.raises(UserError, match="chooses its compressions itself"):
        config_of(schedule=constant(Compression(48, 0.5)))


@pytest.mark.parametrize("algo", METHODS)
@pytest.mark.parametrize("budget", [6e6, 1e7, 2e7, 104e6, 1e12])
def test_all_estimates_together_cost_their_share_and_are_as_large_as_that_allows(
    algo: str, budget: float
) -> None:
    config = config_of(algo, budget=budget, n_local=6 if algo == "dino" else 0)
    size = affordable(config)
    cost = 4 * analysis_units(config, size.cells, size.samples)
    one_more = 4 * analysis_units(config, size.cells, size.samples + size.subbatch)
    assert cost <= 0.02 * budget
    assert one_more > 0.02 * budget or size.samples == MOST_SAMPLES
    assert size.subbatches >= FEWEST_SUBBATCHES and size.subbatch == 64
    assert UNCOMPRESSED in size.cells


def test_a_paper_sized_run_compares_the_whole_grid_and_smaller_ones_less() -> None:
    config = config_of()
    whole = affordable(config)
    assert whole.cells == grid_of(config) and len(whole.cells) == 30
    price = 4 * analysis_units(config, whole.cells, 8 * 64) / 0.02
    assert affordable(replace(config, budget=1.001 * price)) == replace(whole, subbatches=8)
    fewer_sides = affordable(replace(config, budget=0.999 * price)).cells
    assert {cell.p for cell in fewer_sides} == {16, 24, 30, 48} and len(fewer_sides) == 20
    price = 4 * analysis_units(config, fewer_sides, 8 * 64) / 0.02
    coarse = affordable(replace(config, budget=0.999 * price)).cells
    assert {cell.drop for cell in coarse} == {0.0, 0.5, 0.75} and len(coarse) == 12


def test_a_budget_that_is_too_small_is_refused_with_one_that_would_do() -> None:
    config = config_of(budget=1e5)
    with pytest.raises(UserError, match="8 are needed") as refused:
        affordable(config)
    enough = float(refused.value.remedy.split()[2])
    assert affordable(replace(config, budget=enough)).subbatches == FEWEST_SUBBATCHES
    with pytest.raises(UserError, match="pays for 7 sub-batches of 64 images"):
        affordable(replace(config, budget=enough - 2))


def test_sub_batches_are_no_larger_than_the_batch() -> None:
    assert affordable(config_of(batch=24)).subbatch == 24


def test_the_default_of_a_method_is_the_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moco.json").write_text('{"method": "moco", "stages": ' + FLAT + "}")
    assert default_schedule("moco", tmp_path) == constant(Compression(48, 0.5))
    monkeypatch.setattr(
        "accelssl.train.config.compression_options.default_schedule", lambda algo: algo
    )
    said = settings_of((None, None, "default"), UNSAID, DEFAULT_COMPRESSION, "moco")
    assert said == {"schedule": "moco", "auto": None}


@pytest.mark.parametrize("algo", METHODS)
def test_every_method_has_a_default_that_fits_crops_of_the_usual_size(algo: str) -> None:
    file = SHIPPED / f"{algo}.json"
    content, schedule = json.loads(file.read_text()), default_schedule(algo)
    assert content["method"] == algo and isinstance(schedule, Schedule)
    assert config_of(algo, auto=None, schedule=schedule).size == 240
    assert {"model", "data", "data_digest", "samples", "budget"} <= content["analysis"].keys()
    assert {"date", "versions"} <= content["made"].keys()
    assert '"/' not in file.read_text()
