"""What a run notes of where it runs."""

import sys
from pathlib import Path

import pytest
import torch

from accelssl.train.environment import environment


@pytest.mark.parametrize("called", ["bin/accelssl", "site-packages/accelssl/__main__.py"])
def test_the_command_is_one_that_can_be_given_again(
    called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called), "train", "--seed", "3"])
    assert environment(torch.device("cpu"))["command"] == "accelssl train --seed 3"
