"""Checkpoints: written whole or not at all, and enough to continue to the identical next loss."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.pipeline.order import Position

FORMAT = 2
NAME = "checkpoint.pt"
_LITTLE_BYTES = 2**20

Fact = int | float | str
Facts = dict[str, Fact]

# A run of format 1 had one rank and the first draws; who decoded its images was not noted.
_STREAM_OF_FORMAT_1: Facts = {"world": 1, "draws": 1}


@dataclass
class Checkpoint:
    """State after `step` steps. position is the next unseen batch; digest names the shard set.

    fixed and stream are what the run was made with: of the network, and of its data, without which
    position says nothing. Only what was known when it was written is in them.
    """

    step: int
    spent: float
    elapsed_s: float
    images: int
    position: Position
    digest: str
    objective: dict[str, Any]
    optimizer: dict[str, Any]
    fixed: Facts = field(default_factory=dict)
    stream: Facts = field(default_factory=dict)


def save(run: Path, checkpoint: Checkpoint) -> None:
    """Write RUN/checkpoint.pt through a temporary file. UserError when the disk refuses."""
    state = vars(checkpoint) | {
        "format": FORMAT,
        "position": (checkpoint.position.epoch, checkpoint.position.batch),
    }
    partial = run / f"{NAME}.part"
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(run / NAME)
    except (OSError, RuntimeError) as error:
        reason = _reason(error, run)
        partial.unlink(missing_ok=True)
        intact = "; the previous checkpoint is intact" if (run / NAME).exists() else ""
        raise UserError(
            f"The checkpoint could not be written to {run} ({reason}).",
            f"Free space there and continue with --resume{intact}.",
        ) from error


def _reason(error: Exception, run: Path) -> str:
    """torch names a place in its own source where the disk was full."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    free_bytes = shutil.disk_usage(run).free
    return "no space left" if free_bytes < _LITTLE_BYTES else str(error).splitlines()[0]


def load(run: Path, *, at_a_glance: bool = False) -> Checkpoint:
    """Read RUN/checkpoint.pt onto the CPU. UserError when it is missing or unreadable.

    at_a_glance leaves the weights in the file until they are looked at: for the numbers alone.
    """
    path = run / NAME
    if not path.is_file():
        raise UserError(
            f"{run} holds no checkpoint.", "Start the run without --resume, or name another --out."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=at_a_glance)
        written_as = state.pop("format")
        if written_as == 1:
            state["stream"] = _STREAM_OF_FORMAT_1
        elif written_as != FORMAT:
            raise ValueError(f"format {written_as}, not {FORMAT}")
        return Checkpoint(**state | {"position": Position(*state["position"])})
    except Exception as error:
        raise UserError(
            f"{path} is not a checkpoint of this version ({error}).",
            "Use the accelssl that wrote it, or start another run.",
        ) from error
