"""Steps as a run gives them to its log, and what the log then has, for tests."""

import json
from pathlib import Path
from typing import Any

import torch

NOTED = {"spread": torch.tensor(0.625)}


def losses(*values: float) -> torch.Tensor:
    """Those of the ranks, in one step."""
    return torch.tensor(values)


def line(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "images": 8 * step,
        "spent": 4.0 * step,
        "progress": step / 10,
        "lr": 0.1,
        "p": 30,
        "drop": 0.5,
        "elapsed_s": 0.5 * step,
    }


def written(run: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (run / "log.jsonl").read_text().splitlines()]
