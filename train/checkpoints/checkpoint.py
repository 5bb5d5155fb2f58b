"""Checkpoints: written whole or not at all, and enough to continue to the identical next loss."""

import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from accelssl.errors import UserError
from accelssl.pipeline.draws.order import Position

FORMAT = 3
NAME = "checkpoint.pt"
_LITTLE_BYTES = 2**20
_ZIP = b"PK\x03\x04"  # what torch.load knows its files by

Fact = int | float | str
Facts = dict[str, Fact]

# A run of format 1 had one rank and the first draws; who decoded its images was not noted.
_STREAM_OF_FORMAT_1: Facts = {"world": 1, "draws": 1}
# Format 2 had these among what may change where an epoch begins anew.
_FIXED_SINCE_FORMAT_3 = ("seed", "size", "min_area", "symmetric")


@dataclass
class Checkpoint:
    """State after `step` steps. position is the next unseen batch; digest names the shard set.

    fixed and stream are what the run was made with: its configuration, and its data, without which
    position says nothing. versions are those of the packages that computed it. Only what was known
    when it was written is in them. decisions: of a run that chooses its compressions itself, as
    JSON has them.
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
    versions: dict[str, str] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)


def save(run: Path, checkpoint: Checkpoint, also_as: Sequence[str] = ()) -> None:
    """Write RUN/checkpoint.pt through a temporary file, and let other names in RUN be that file.

    UserError when the disk refuses, and when a weight or moment is not finite; the checkpoint
    before stays as it was.
    """
    _refuse_lost_numbers(run, checkpoint)
    state = vars(checkpoint) | {
        "format": FORMAT,
        "position": (checkpoint.position.epoch, checkpoint.position.batch),
    }
    partial = run / f"{NAME}.part"
    try:
        # What a killed process has left may be another checkpoint too, by a link.
        partial.unlink(missing_ok=True)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        # Killed between these, the run repeats some steps and writes the other names again.
        for name in also_as:
            _link(partial, run / name)
        partial.replace(run / NAME)
    except (OSError, RuntimeError) as error:
        reason = _reason(error, run)
        partial.unlink(missing_ok=True)
        intact = "; the previous checkpoint is intact" if (run / NAME).exists() else ""
        raise UserError(
            f"The checkpoint could not be written to {run} ({reason}).",
            f"Free space there and continue with --resume{intact}.",
        ) from error


def _link(file: Path, name: Path) -> None:
    """Let `name` be the file too; a copy of it where the file system has no links."""
    partial = name.with_name(f"{name.name}.part")
    partial.unlink(missing_ok=True)
    try:
        partial.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, partial)
    partial.replace(name)
    partial.unlink(missing_ok=True)  # of two links to one file neither replaces the other


def _reason(error: Exception, run: Path) -> str:
    """torch names a place in its own source where the disk was full."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    free_bytes = shutil.disk_usage(run).free
    return "no space left" if free_bytes < _LITTLE_BYTES else str(error).splitlines()[0]


def _refuse_lost_numbers(run: Path, checkpoint: Checkpoint) -> None:
    """UserError where no step could follow. The device is waited for once, not for each tensor."""
    state = {"objective": checkpoint.objective, "optimizer": checkpoint.optimizer}
    tensors = dict(_floats("", state))
    # The largest magnitude of all, which is NaN where one is.
    if not tensors or bool(get_total_norm(tensors.values(), float("inf")).isfinite()):
        return
    name = next(name for name, tensor in tensors.items() if not bool(tensor.isfinite().all()))
    raise UserError(
        f"After step {checkpoint.step} not all of{name.replace('.', ' ', 1)} is finite.",
        after_lost_numbers(run),
    )


def _floats(name: str, state: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dicts that can be other than finite, with their dotted names."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _floats(f"{name}.{key}", value)
    elif isinstance(state, Tensor) and state.is_floating_point() and state.numel():
        yield name, state


def after_lost_numbers(run: Path) -> str:
    """How to go on where a loss or a weight is not finite."""
    another = "Start another run with a lower --lr"
    if not (run / NAME).exists():
        return f"{another}."
    step = load(run, at_a_glance=True).step
    return f"{another}, or try again with --resume from {run / NAME}, which is of step {step}."


def load(run: Path, *, at_a_glance: bool = False, name: str = NAME) -> Checkpoint:
    """Read RUN/checkpoint.pt onto the CPU. UserError when it is missing or unreadable.

    at_a_glance leaves the weights in the file until they are looked at: for the numbers alone.
    name: of another checkpoint in RUN.
    """
    path = run / name
    if not path.is_file():
        raise UserError(
            f"{run} holds no checkpoint.", "Start the run without --resume, or name another --out."
        )
    if not at_a_glance:
        refuse_damage(path, _put_back(name))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=at_a_glance)
        _renew(state, state.pop("format"))
        return Checkpoint(**state | {"position": Position(*state["position"])})
    except Exception as error:
        if at_a_glance:
            refuse_damage(path, _put_back(name))
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is not a checkpoint of this version ({reason}).",
            "Use the accelssl that wrote it, or start another run.",
        ) from error


def _put_back(name: str) -> str:
    if name == NAME:
        return f"Put back a copy of it, or an earlier checkpoint of the run as {NAME}."
    return "Put back a copy of it, or remove it."


def refuse_damage(path: Path, remedy: str, *, may_be_no_zip: bool = False) -> None:
    """UserError where a file of torch.save is not what was written: torch.load checks no sums.

    Left to torch.load are those written without sums (torch.serialization.set_crc32_options) and,
    where they may be, files that are no zip.
    """
    try:
        damaged = _damage(path, may_be_no_zip)
    except OSError as error:
        damaged = error.strerror or str(error)
    except Exception:  # of many types, for headers that are not what they were
        damaged = "its end is missing, or its list of parts is broken"
    if damaged is not None:
        raise UserError(f"{path} is damaged ({damaged}).", remedy)


def _damage(path: Path, may_be_no_zip: bool) -> str | None:
    """What is wrong, or the first part whose sum is."""
    with path.open("rb") as file:
        beginning = file.read(len(_ZIP))
    if not beginning:
        return "it is empty"
    if beginning != _ZIP:
        return None if may_be_no_zip else "its beginning is not that of a checkpoint"
    with zipfile.ZipFile(path) as parts:
        has_sums = any(part.CRC for part in parts.infolist())
        return parts.testzip() if has_sums else None


def _renew(state: dict[str, Any], written_as: int) -> None:
    """Let what an earlier format wrote be as the present one has it."""
    if written_as not in (1, 2, FORMAT):
        raise ValueError(f"format {written_as}, not {FORMAT}")
    if written_as == 1:
        state["stream"] = dict(_STREAM_OF_FORMAT_1)
    if written_as == 2:
        moved = [name for name in _FIXED_SINCE_FORMAT_3 if name in state["stream"]]
        state["fixed"] |= {name: state["stream"].pop(name) for name in moved}
