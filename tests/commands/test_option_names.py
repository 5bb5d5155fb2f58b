"""Messages name the options that there are: the table agrees with the command line, and both ways.

The command line itself is the oracle: what it accepts, and which setting an option changes.
"""

import ast
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from accelssl import cli
from accelssl.errors import UserError
from accelssl.option_names import OPTIONS, option_of
from accelssl.pipeline.compression import Compression
from accelssl.train.config import recipes
from accelssl.train.config.auto import BEFORE, Auto
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import constant
from accelssl.train.evaluate import finetune_state
from accelssl.train.evaluate.finetune_settings import FinetuneSettings
from accelssl.train.evaluate.finetune_state import FinetuneState
from accelssl.train.gradients.record import refuse_other_facts

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED: dict[str, set[str]] = {
    name: {option for parameter in command.params for option in parameter.opts}
    for name, command in typer.main.get_command(cli.app).commands.items()  # type: ignore[attr-defined]
}
NO_SETTINGS = {
    *("--out", "--recipe", "--small", "--resume", "--restart-epoch", "--baseline", "--device"),
    *("--patch", "--drop", "--schedule"),
}
"""Options of train that are no field of a run's configuration, or share one."""
OF_OTHERS = {
    *("--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--rdzv-id", "--standalone"),  # torchrun
    *("--shm-size", "--dereference", "--hard-dereference"),  # docker, tar
    *("--std", "--ftz", "--gpu-architecture"),  # NVRTC
}
VALUES: dict[str, str] = {
    "--algo": "moco",
    "--model": "vit_tiny_patch16_224",
    "--data": "elsewhere",
    "--budget": "2M",
    "--size": "480",
    "--batch": "64",
    "--lr": "0.5",
    "--weight-decay": "0.5",
    "--warmup": "0.5",
    "--temperature": "0.5",
    "--head-hidden": "64",
    "--momentum": "0.5",
    "--symmetric": "",
    "--min-area": "0.5",
    "--mode": "official",
    "--local-crops": "3",
    "--prototypes": "64",
    "--teacher-temp": "0.06",
    "--seed": "7",
    "--eval-every": "0.5",
    "--precision": "bf16",
    "--threads": "3",
    "--readers": "3",
    "--prefetch": "5",
    "--hw-load": "0.5",
    "--decoders": "3",
    "--preallocate": "64",
    "--keep": "3",
    "--keep-at": "0,0.5",
    "--auto-share": "0.5",
    "--auto-at": "0,0.5",
    "--auto-patches": "16,24",
    "--auto-drops": "0,0.5",
}
"""For each option of train that is a setting, another value than the default."""
MAY_CHANGE = {
    *("--data", "--precision", "--threads", "--readers", "--prefetch", "--hw-load"),
    *("--decoders", "--preallocate", "--keep", "--keep-at", "--eval-every"),
}
"""Between the parts of a run."""
OF_AUTO = {option for option in VALUES if option.startswith("--auto-")}
"""They take effect with --schedule auto alone."""
ALGO = {"--momentum": "moco", "--symmetric": "moco"} | dict.fromkeys(
    ("--mode", "--local-crops", "--prototypes", "--teacher-temp"), "dino"
)


def given(option: str) -> list[str]:
    return [option, *VALUES[option].split()]


def accelssl(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and stderr of the command, its lines joined."""
    sys.argv = ["accelssl", *map(str, words)]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_of_the_table_is_one_of_its_command(command: str) -> None:
    named = {each for option in OPTIONS[command].values() for each in option.split(" and ")}
    assert named <= ACCEPTED[command]


def test_every_setting_of_train_is_in_the_table_and_given_here_another_value() -> None:
    assert set(OPTIONS["train"].values()) == set(VALUES) == ACCEPTED["train"] - NO_SETTINGS
    names = {field.name for field in fields(TrainConfig)} | {
        f"auto_{field.name}" for field in fields(Auto)
    }
    assert set(OPTIONS["train"]) <= names


@pytest.mark.parametrize("name", OPTIONS["train"])
def test_an_option_of_train_changes_the_setting_that_the_table_says(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[dict[str, Any]] = []

    def taken(config: TrainConfig, *_: object, **__: object) -> int:
        configs.append(config.to_json())
        return 0

    monkeypatch.setattr("accelssl.train.command.run_training", taken)
    option = option_of(name)
    usual = ["train", "--data", "shards", "--out", "run", "--budget", "1M", "--device", "cpu"]
    usual += ["--precision", "fp32"]  # auto is what the machine is good at
    usual += ["--algo", ALGO[option]] if option in ALGO else []
    usual += ["--schedule", "auto"] if name.startswith("auto_") else []
    for words in (usual, [*usual, *given(option)]):
        code, said = accelssl(capsys, *words)
        assert code == 0, said
    before, after = configs
    for part in name.split("_", 1) if name.startswith("auto_") else [name]:
        before, after = before.get(part, {}), after.get(part, {})
    assert before != after


def test_every_option_that_is_named_anywhere_is_one_of_some_command() -> None:
    """In messages, and in docstrings too: of the code that speaks to users of the commands."""
    known = set.union(*ACCEPTED.values()) | {"--help", "--version", "--no-baseline"} | OF_OTHERS
    files = [path for top in ("src", "pipeline", "train") for path in (ROOT / top).rglob("*.py")]
    named = {
        (option, path.name)
        for path in files
        if path.name != "style.py"  # style sheets have variables of that look
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", node.value)
    }
    assert len(named) > 100
    assert {(option, file) for option, file in named if option not in known} == set()


@pytest.mark.parametrize("option", sorted(set(VALUES) - MAY_CHANGE - OF_AUTO))
def test_what_may_not_change_on_resume_is_refused_by_the_option_that_was_given(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make = {"moco": recipes.moco, "dino": recipes.dino}.get(ALGO.get(option, ""), recipes.simclr)
    started = make("vit_base_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)))
    (tmp_path / "config.json").write_text(json.dumps(started.to_json()))
    resuming = ("train", "--out", tmp_path, "--resume", "--device", "cpu")
    code, said = accelssl(capsys, *resuming, *given(option))
    assert code == 2 and f"Leave {option} out to resume" in said
    (name,) = (name for name, each in OPTIONS["train"].items() if each == option)
    if option == "--symmetric":
        assert "was started without --symmetric." in said
        return
    assert re.search(rf"was started with {option} \S+( \({name} in its config.json\))?, not ", said)
    assert (f"({name} in" in said) == (option.strip("-").replace("-", "_") != name)
    assert ("--restart-epoch" in said) == (option == "--batch")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--patch 16", "--patch"),
        ("--drop 0.25", "--drop"),
        ("--patch 16 --drop 0", "--patch and --drop"),
        ("--schedule auto", "--schedule"),
        ("--schedule default", "--schedule"),
    ],
)
def test_another_compression_on_resume_is_refused_by_the_options_that_were_given(
    words: str, options: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = recipes.moco("vit_base_patch16_224", "shards", 1e6, constant(Compression(30, 0.5)))
    (tmp_path / "config.json").write_text(json.dumps(started.to_json()))
    resuming = ("train", "--out", tmp_path, "--resume", "--device", "cpu")
    code, said = accelssl(capsys, *resuming, *words.split())
    assert code == 2 and "was started with p30 d0.5 until 1, not " in said
    assert f"Leave {options} out to resume" in said


@pytest.mark.parametrize(
    ("words", "said_of_it"),
    [
        ("--auto-share 0.5", "with --auto-share 0.02, not 0.5. Leave --auto-share out"),
        ("--auto-at 0,.5", "with --auto-at 0,0.25,0.5,0.75, not 0,0.5. Leave --auto-at out"),
        (
            "--auto-patches 16,24",
            "with --auto-patches 16,20,24,30,40,48, not 16,24. Leave --auto-patches out",
        ),
        (
            "--auto-drops 0,.5",
            "with --auto-drops 0,0.25,0.5,0.75,0.9, not 0,0.5. Leave --auto-drops out",
        ),
    ],
)
def test_what_auto_was_started_with_is_named_as_it_is_given(
    words: str, said_of_it: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = recipes.moco("vit_base_patch16_224", "shards", 1e6, BEFORE, auto=Auto())
    (tmp_path / "config.json").write_text(json.dumps(started.to_json()))
    resuming = ("train", "--out", tmp_path, "--resume", "--device", "cpu", "--schedule", "auto")
    code, said = accelssl(capsys, *resuming, *words.split())
    assert code == 2 and said_of_it in said


def test_another_analysis_is_refused_by_its_options_and_the_table_has_names_of_its_record() -> None:
    record = ROOT / "benchmarks" / "results" / "camse_moco_h200_202611.json"
    names = json.loads(record.read_text())["facts"].keys()
    for name, option in OPTIONS["analyze-gradients"].items():
        assert name in names
        with pytest.raises(UserError, match=rf"with {option} 1, not 2\."):
            refuse_other_facts(Path("camse.json"), {name: 1}, {name: 2})
    with pytest.raises(UserError, match=r"with units 1, not 2\."):
        refuse_other_facts(Path("camse.json"), {"units": 1}, {"units": 2})


def test_another_fine_tuning_is_refused_by_its_options(tmp_path: Path) -> None:
    assert "base_lr" in {field.name for field in fields(FinetuneSettings)}
    finetune_state.save(tmp_path, FinetuneState({"base_lr": 0.1, "ema_decay": 0.5}))
    with pytest.raises(UserError, match=r"with --lr 0\.1, not 0\.2; ema_decay 0\.5, not 0\.9\."):
        finetune_state.load(tmp_path, {"base_lr": 0.2, "ema_decay": 0.9})
