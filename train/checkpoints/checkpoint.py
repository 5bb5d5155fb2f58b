"""Checkpoints, which are written atomically and suffice to repeat the identical next loss."""

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
_ZIP = b"PK\x03\x04"  # first bytes of the files of torch.save

Fact = int | float | str
Facts = dict[str, Fact]

# A run of format 1 had one rank and version 1 of the draws (random crops). Its decoder is unknown.
_STREAM_OF_FORMAT_1: Facts = {"world": 1, "draws": 1}
# Format 2 stored these facts in `stream`, whose facts may change with --restart-epoch.
_FIXED_SINCE_FORMAT_3 = ("seed", "size", "min_area", "symmetric")


@dataclass
class Checkpoint:
    """State of a run after `step` steps.

    position: the next batch to train on.
    digest: the digest of the shard set.
    fixed: facts of the configuration, which may not change.
    stream: facts that decide, with the shard set, which pixels are in each batch.
    versions: of the packages that computed the run.
    decisions: the compressions chosen under --schedule auto, as JSON objects.

    An older accelssl stored fewer facts: fixed, stream and versions may lack some.
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
    """Write RUN/checkpoint.pt through a temporary file, and link the names `also_as` to the file.

    Raise UserError if the file cannot be written or if a weight or moment is not finite. The
    previous checkpoint then stays unchanged.
    """
    _refuse_lost_numbers(run, checkpoint)
    state = vars(checkpoint) | {
        "format": FORMAT,
        "position": (checkpoint.position.epoch, checkpoint.position.batch),
    }
    partial = run / f"{NAME}.part"
    try:
        # A killed process may have left a file that is linked to another checkpoint.
        partial.unlink(missing_ok=True)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        # If the process is killed here, the run repeats some steps and writes the names again.
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
    """Link `name` to the file, or copy the file if the file system has no hard links."""
    partial = name.with_name(f"{name.name}.part")
    partial.unlink(missing_ok=True)
    try:
        partial.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, partial)
    partial.replace(name)
    partial.unlink(missing_ok=True)  # replace() does nothing if both are links to one file


def _reason(error: Exception, run: Path) -> str:
    """Return the reason of a failed write. torch's own message does not mention a full disk."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    free_bytes = shutil.disk_usage(run).free
    return "no space left" if free_bytes < _LITTLE_BYTES else str(error).splitlines()[0]


def _refuse_lost_numbers(run: Path, checkpoint: Checkpoint) -> None:
    """Raise UserError if a tensor is not finite. Synchronise with the device only once."""
    state = {"objective": checkpoint.objective, "optimizer": checkpoint.optimizer}
    tensors = dict(_floats("", state))
    # The norm is the largest magnitude of all tensors, or NaN if one value is NaN.
    if not tensors or bool(get_total_norm(tensors.values(), float("inf")).isfinite()):
        return
    name = next(name for name, tensor in tensors.items() if not bool(tensor.isfinite().all()))
    raise UserError(
        f"After step {checkpoint.step} not all of{name.replace('.', ' ', 1)} is finite.",
        after_lost_numbers(run),
    )


def _floats(name: str, state: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors in nested dicts with their dotted names."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _floats(f"{name}.{key}", value)
    elif isinstance(state, Tensor) and state.is_floating_point() and state.numel():
        yield name, state


def after_lost_numbers(run: Path) -> str:
    """Return the remedy for a loss or a weight that is not finite."""
    another = "Start another run with a lower --lr"
    if not (run / NAME).exists():
        return f"{another}."
    step = load(run, at_a_glance=True).step
    return f"{another}, or try again with --resume from {run / NAME}, which is of step {step}."


def load(run: Path, *, at_a_glance: bool = False, name: str = NAME) -> Checkpoint:
    """Read RUN/checkpoint.pt onto the CPU. Raise UserError if the file is missing or unreadable.

    at_a_glance: map the weights instead of reading them, for callers that need only the numbers.
    name: the name of another checkpoint in RUN.
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
    """Raise UserError if a file of torch.save is damaged. torch.load verifies no checksums.

    A file without checksums (torch.serialization.set_crc32_options) is not verified. With
    `may_be_no_zip`, a file that is not a zip archive is not verified either.
    """
    try:
        damaged = _damage(path, may_be_no_zip)
    except OSError as error:
        damaged = error.strerror or str(error)
    except Exception:  # damaged headers raise exceptions of many types
        damaged = "its end is missing, or its list of parts is broken"
    if damaged is not None:
        raise UserError(f"{path} is damaged ({damaged}).", remedy)


def _damage(path: Path, may_be_no_zip: bool) -> str | None:
    """Return the damage, or the name of the first part with a wrong checksum; None if intact."""
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
    """Convert the state of an earlier format to the present format, in place."""
    if written_as not in (1, 2, FORMAT):
        raise ValueError(f"format {written_as}, not {FORMAT}")
    if written_as == 1:
        state["stream"] = dict(_STREAM_OF_FORMAT_1)
    if written_as == 2:
        moved = [name for name in _FIXED_SINCE_FORMAT_3 if name in state["stream"]]
        state["fixed"] |= {name: state["stream"].pop(name) for name in moved}
