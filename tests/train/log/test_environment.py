"""What a run notes of where it runs."""

import sys
from pathlib import Path

import pytest
import torch

from accelssl.switches import KERNELS, TORCH
from accelssl.train.log.environment import environment


@pytest.mark.parametrize("called", ["bin/accelssl", "site-packages/accelssl/__main__.py"])
def test_the_command_is_one_that_can_be_given_again(
    called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called), "train", "--seed", "3"])
    assert environment(torch.device("cpu"))["command"] == "accelssl train --seed 3"


def test_it_tells_what_was_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNELS, raising=False)
    assert KERNELS not in environment(torch.device("cpu"))
    monkeypatch.setenv(KERNELS, TORCH)
    assert environment(torch.device("cpu"))[KERNELS] == TORCH
