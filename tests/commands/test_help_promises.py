"""What the help of an option names as a value is a value: no command refuses it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

import click
import pytest
import torch
import typer

from accelssl import cli
from accelssl.benchmarks.throughput.plan import default_plan
from accelssl.errors import UserError
from accelssl.pipeline.compression import PATCH_SIDES, UNCOMPRESSED
from accelssl.train.config import recipes
from accelssl.train.config.schedule import constant
from accelssl.train.gradients.grid import DROPS
from accelssl.train.loop import CHECKPOINT_S

RECORD = Path(__file__).resolve().parents[2] / "benchmarks/results/camse_moco_h200_202611.json"
COMMANDS: dict[str, click.Command] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]

NEEDED = {
    "train": "--data NOWHERE --out NEW --budget 99M --device cpu",
    "plan": "--data NOWHERE --budget 9M --model vit_tiny_patch16_224 --device cpu",
    "evaluate": "RUN --device cpu",
    "analyze-gradients": "RUN --device cpu",
    "schedule": f"{RECORD} --budget 2M --out NOWHERE/schedule.json",
    "demo": "--out .",
    "bench-throughput": "--device cpu",
    "doctor": "--device cpu",
    "shard-imagenet": "NOWHERE NEW",
}
"""What each command needs beside to come as far as NOWHERE: a place that is not there."""

SLOW = (
    "benchmarks.throughput.throughput.bench_throughput",
    "benchmarks.kernel.kernel.bench_kernel",
    "benchmarks.doctor.examination.examine",
    "train.demo._write_shards",
    "train.evaluate.command.evaluate_neighbours",
    "train.evaluate.command.linear_scores",
    "train.evaluate.finetune.finetune",
    "train.gradients.command.kept_at",
    "train.plan.plan_command.probe_speed",
)
"""What comes after the options, and ends at NOWHERE too."""

PROMISED = {
    "train --algo": "simclr moco dino",
    "train --schedule": "default auto",
    "train --algo moco --schedule": "default auto",
    "train --algo dino --schedule": "default auto",
    "train --batch": "auto",
    "train --algo dino --mode": "paper official",
    "train --precision": "bf16 fp32 auto",
    "train --device": "cpu auto",
    "plan --algo": "simclr moco dino",
    "plan --schedule": "default",
    "plan --algo moco --schedule": "default",
    "plan --algo dino --schedule": "default",
    "plan --algo dino --mode": "paper official",
    "plan --precision": "bf16 fp32 auto",
    "plan --device": "cpu auto",
    "evaluate --protocol": "nn linear finetune",
    "evaluate --protocol linear --preset": "moco dino mae",
    "evaluate --protocol finetune --preset": "deit mae",
    "evaluate --protocol linear --crops": "central fresh",
    "evaluate --device": "cpu auto",
    "analyze-gradients --estimator": "paired plugin",
    "analyze-gradients --negatives": "subbatch bank",
    "analyze-gradients --scope": "all backbone",
    "analyze-gradients --precision": "bf16 fp32 auto",
    "analyze-gradients --device": "cpu auto",
    "schedule --between": "steps interpolated",
    "demo --device": "cpu auto",
    "bench-throughput --only": "decoder loader step live kernel",
    "bench-throughput --only kernel --implementation": "torch",
    "bench-throughput --device": "cpu auto",
    "doctor --implementation": "torch auto",
    "doctor --device": "cpu auto",
    "shard-imagenet --subset": "in100",
}
"""The values that help names, by command and option; one that needs a GPU is left out."""


def options_of(command: str) -> dict[str, Any]:
    return {
        option: parameter for parameter in COMMANDS[command].params for option in parameter.opts
    }


def help_of(command: str, option: str) -> str:
    parameter = options_of(command)[option]
    return f"{parameter.metavar or ''} {getattr(parameter, 'help', None) or ''}"


CASES = [
    (words.split()[0], words.split()[1:], value)
    for words, values in PROMISED.items()
    for value in values.split()
]


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command says when it refuses, in a folder with the configuration of a RUN."""

    def nowhere(*_: object, **__: object) -> NoReturn:
        raise UserError("This ends NOWHERE.", "It has come far enough.")

    def accelssl(command: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["accelssl", command, *NEEDED[command].split(), *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        return capsys.readouterr().err

    for slow in SLOW:
        monkeypatch.setattr(f"accelssl.{slow}", nowhere)
    images = SimpleNamespace(split=lambda _: range(10**6), location="set", digest="0")
    monkeypatch.setattr("accelssl.train.gradients.command.open_shards", lambda _: images)
    monkeypatch.setattr("accelssl.train.plan.plan_command.open_shards", lambda _: images)
    subject = MagicMock(networks={}, run=None)
    subject.trained.width = 192
    monkeypatch.setattr("accelssl.train.evaluate.command.open_subject", lambda *_, **__: subject)
    monkeypatch.chdir(tmp_path)
    Path("RUN").mkdir()
    run = recipes.simclr("vit_base_patch16_224", "set", 1e6, constant(UNCOMPRESSED))
    Path("RUN/config.json").write_text(json.dumps(run.to_json()))
    return accelssl


@pytest.mark.parametrize(("command", "words", "value"), CASES)
def test_a_value_that_help_names_is_not_what_the_command_refuses(
    command: str, words: list[str], value: str, told: Callable[..., str]
) -> None:
    assert re.search(rf"\b{value}\b", help_of(command, words[-1]))
    assert "NOWHERE" in told(command, *words, value)


@pytest.mark.parametrize("named", PROMISED)
def test_a_value_that_help_does_not_name_is_refused(named: str, told: Callable[..., str]) -> None:
    """So that coming further says something."""
    command, *words = named.split()
    said = told(command, *words, "nonsense")
    assert "nonsense" in said and "NOWHERE" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_no_value_that_help_names_for_itself_is_left_out_here(command: str) -> None:
    """Alternatives in the place of a value, and `auto` wherever an option knows it."""
    for option in options_of(command):
        text = help_of(command, option)
        metavar = getattr(options_of(command)[option], "metavar", None) or ""
        named = {word for word in metavar.split("|") if word.islower()} if "|" in metavar else set()
        named |= set(re.findall(r"(?<!--schedule )\bauto\b", text))
        tried = {value for name, words, value in CASES if (name, words[-1]) == (command, option)}
        assert named <= tried, option


@pytest.mark.parametrize(
    ("device", "quick", "models", "compressions"),
    [
        ("cuda", False, "[ViT-B, ViT-S;", "[six;"),
        ("cuda", True, "--quick ViT-S;", "with --quick or on a CPU these two]"),
        ("cpu", False, "on a CPU ViT-Ti]", "with --quick or on a CPU these two]"),
        ("cpu", True, "on a CPU ViT-Ti]", "with --quick or on a CPU these two]"),
    ],
)
def test_what_a_benchmark_measures_unasked_is_what_help_says(
    device: str, quick: bool, models: str, compressions: str
) -> None:
    plan = default_plan(torch.device(device), quick)
    named, listed = (help_of("bench-throughput", f"--{x}") for x in ("models", "compressions"))
    assert models in named and compressions in listed
    letters = [model.removeprefix("vit_")[0].upper() for model in plan.models]
    assert re.findall(r"ViT-(\w)", models) == letters
    if "six" in compressions:
        assert len(plan.compressions) == 6
    else:
        assert ",".join(f"{c.p}:{c.drop:g}" for c in plan.compressions) in listed


def test_checkpoints_are_as_frequent_as_help_says() -> None:
    assert "every five minutes" in help_of("train", "--resume") and CHECKPOINT_S == 5 * 60


def test_the_grid_that_help_names_is_the_usual_one() -> None:
    patches, drops = (help_of("analyze-gradients", name) for name in ("--patches", "--drops"))
    assert ",".join(map(str, PATCH_SIDES)) in patches
    assert ",".join(f"{drop:g}".removeprefix("0") or "0" for drop in DROPS) in drops
