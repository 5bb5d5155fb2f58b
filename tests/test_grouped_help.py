"""The help of a command with many options: each once, under its heading, with true defaults."""

import re
import sys

import pytest

from accelssl import cli
from accelssl.pipeline.compression import Compression
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.recipes import usual
from accelssl.train.config.schedule import constant


@pytest.fixture
def help_of_train(capsys: pytest.CaptureFixture[str]) -> str:
    sys.argv = ["accelssl", "train", "--help"]
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().out


def configured(algo: str) -> TrainConfig:
    compression = constant(Compression(30, 0.5))
    return usual(algo, "vit_base_patch16_224", "shards", 1e6, compression)


def test_every_option_stands_once_under_its_heading(help_of_train: str) -> None:
    sections = dict(re.findall(r"^(\w[^\n]*):\n(.*?)(?=\n\n)", help_of_train, re.DOTALL | re.M))
    options = {name: re.findall(r"^  (--[\w-]+)", text, re.M) for name, text in sections.items()}
    assert list(options) == [
        "Options",
        "Training",
        "Of some methods alone",
        "On this machine",
        "Stopping and going on",
    ]
    assert {"--out", "--data", "--recipe", "--help"} <= set(options["Options"])
    assert "--lr" in options["Training"] and "--symmetric" in options["Of some methods alone"]
    assert "--threads" in options["On this machine"]
    assert "--resume" in options["Stopping and going on"]
    everything = [option for section in options.values() for option in section]
    assert len(everything) == len(set(everything)) >= 30


def test_the_defaults_in_brackets_are_the_recipes(help_of_train: str) -> None:
    text = " ".join(help_of_train.split())
    fields = {"--lr": "base_lr", "--warmup": "warmup"}
    for option, field in fields.items():
        described = text[text.index(f"{option} <") :]
        found = re.search(r"\[simclr (\S+), moco (\S+), dino (\S+)\]", described)
        assert found, option
        for algo, value in zip(("simclr", "moco", "dino"), found.groups(), strict=True):
            assert float(value) == getattr(configured(algo), field), (option, algo)
