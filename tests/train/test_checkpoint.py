"""A checkpoint that cannot be written."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.order import Position
from accelssl.train import checkpoint
from accelssl.train.checkpoint import Checkpoint

Usage = namedtuple("Usage", "total used free")


def state() -> Checkpoint:
    return Checkpoint(1, 1.0, 1.0, 1, Position(), "digest", {"w": torch.zeros(3)}, {})


def fail(*_: Any) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0\nmore")


@pytest.mark.parametrize(
    ("free_bytes", "reason"), [(0, r"\(no space left\)"), (2**40, "unexpected pos 64 vs 0")]
)
def test_a_full_disk_is_said_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, reason: str
) -> None:
    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(2**40, 2**40, free_bytes))
    with pytest.raises(UserError, match=reason) as raised:
        checkpoint.save(tmp_path, state())
    assert "intact" not in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_before_it_is_left_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path, state())
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(UserError) as raised:
        checkpoint.save(tmp_path, state())
    assert "the previous checkpoint is intact" in raised.value.remedy
    assert checkpoint.load(tmp_path).digest == "digest"
