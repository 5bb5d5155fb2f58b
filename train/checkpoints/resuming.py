"""Rules for resuming a run: settings that may not change, and those --restart-epoch may change."""

import json
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path

import torch
from torch import nn

from accelssl.errors import UserError
from accelssl.pipeline.draws.draw_version import DRAW_VERSION, decoder_versions
from accelssl.pipeline.draws.order import Position
from accelssl.pipeline.loader import LoaderOptions
from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.checkpoint import Checkpoint, Fact, Facts
from accelssl.train.config.budget import format_units
from accelssl.train.config.config import OF_THE_MACHINE, TrainConfig
from accelssl.train.report.history import read_history

Changes = dict[str, tuple[Fact, Fact]]
"""Changed facts: name -> (value in the checkpoint, present value)."""

# Settings that may differ between the parts of a run: the machine, the place of the data, the
# evaluations and the checkpoints to keep. The batch may change with --restart-epoch: see stream_of.
_FREE = frozenset({*OF_THE_MACHINE, "data", "batch", "eval_every", "keep_latest", "keep_at"})
_COMPUTED_BY = ("accelssl", "torch", "timm")
_SHARDS = "shard set"
_NAMES = {"world": "ranks", "draws": "version of the draws"}


@dataclass(frozen=True)
class Restart:
    """Restart of a run at the next whole epoch: the position it left, and the changed facts."""

    left: Position
    changes: Changes = field(default_factory=dict)

    @property
    def start(self) -> Position:
        """Return the first batch of the next epoch. After a complete epoch no batch is skipped."""
        return Position(self.left.epoch + 1, 0) if self.left.batch else self.left

    def to_json(self) -> dict[str, object]:
        """Return the fields of the log event; epochs and batches from 0, changes as pairs."""
        return {
            "epoch": self.start.epoch,
            "left_epoch": self.left.epoch,
            "left_batch": self.left.batch,
            "changes": self.changes,
        }

    def __str__(self) -> str:
        begins = f"The run goes on with epoch {self.start.epoch} from its start"
        left = f", epoch {self.left.epoch} was left at batch {self.left.batch}"
        changed = f": {described(self.changes)}" if self.changes else ""
        return f"{begins}{left if self.left.batch else ''}{changed}."


def fixed_of(config: TrainConfig) -> Facts:
    """Return the settings that may not change in a run: all settings that are not in _FREE."""
    told = json.loads(json.dumps(config.to_json()))  # checkpoints hold only plain types
    return {f.name: _fact(told[f.name]) for f in fields(config) if f.name not in _FREE}


def _fact(value: object) -> Fact:
    return value if isinstance(value, Fact) else json.dumps(value)


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a run."""
    return {name: metadata.version(name) for name in _COMPUTED_BY}


def changed_versions(state: Checkpoint) -> Changes:
    """Return the packages whose version differs from the version in the checkpoint."""
    return _differences(dict(state.versions), dict(versions()))


def stream_of(options: LoaderOptions) -> Facts:
    """Return the facts that decide which pixels are in batch k of an epoch.

    The shard set and the configuration decide this too, but are stored elsewhere.
    """
    return {
        "batch": options.batch * options.world,
        "world": options.world,
        "draws": DRAW_VERSION,
        **decoder_versions(),
    }


def changed_stream(state: Checkpoint, stream: Facts, digest: str) -> Changes:
    """Return the facts about the data that differ from those in the checkpoint."""
    changes = _differences(state.stream, stream)
    if digest != state.digest:
        changes[_SHARDS] = state.digest[:12], digest[:12]
    return changes


def refuse_another_stream(changes: Changes, location: str) -> None:
    """Raise UserError if a run in mid-epoch would skip or repeat images, or get other pixels."""
    if not changes:
        return
    raise UserError(
        f"{location} is not the shard set the run was trained on ({described(changes)})."
        if _SHARDS in changes
        else f"The run was trained with {described(changes)}.",
        f"Go back to {_was(changes)}, or add --restart-epoch: "
        "the run goes on with the next epoch from its start.",
    )


def refuse_another_network(run: Path, state: Checkpoint, config: TrainConfig) -> None:
    """Raise UserError if config.json does not match the settings stored in the checkpoint."""
    changes = _differences(state.fixed, fixed_of(config))
    if changes:
        raise UserError(
            f"{run / 'config.json'} is not that of {checkpoint.NAME}, which has "
            f"{described(changes)}.",
            f"Set it back to {_was(changes)}, or start another run with another --out.",
        )


def load_weights(
    run: Path,
    state: Checkpoint,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    name: str = checkpoint.NAME,
) -> None:
    """Load the checkpoint RUN/name into `objective` and, if given, `optimizer`.

    Raise UserError if the checkpoint does not fit. (Format 1 does not record its model.)
    """
    try:
        objective.load_state_dict(state.objective)
        if optimizer is not None:
            optimizer.load_state_dict(state.optimizer)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"{run / name} does not fit the model of config.json ({_first_reason(error)}).",
            "Set config.json back to what it was, or start another run with another --out.",
        ) from error


def finished(run: Path, budget: float) -> str | None:
    """Return a line for the user if the run in folder `run` has spent its budget, else None."""
    if not (run / checkpoint.NAME).exists():
        return None
    state = checkpoint.load(run, at_a_glance=True)
    if state.spent < budget:
        return None
    return (
        f"{run} is finished: {format_units(state.spent)} of {format_units(budget)} units spent "
        f"in {state.step:,} steps, nothing is left to do."
    )


def refuse_a_lost_checkpoint(run: Path) -> None:
    """Raise UserError if the log has steps. Without their checkpoint the run would begin at 0."""
    steps = read_history(run).steps
    if len(steps):
        raise UserError(
            f"{run / 'log.jsonl'} has steps up to {steps.step[-1]:.0f}, "
            f"but {run / checkpoint.NAME} is missing.",
            f"Put it back, or copy one that was kept (checkpoint-*.pt) to {checkpoint.NAME}; to "
            "begin at step 0 remove log.jsonl.",
        )


def _differences(stored: Facts, found: Facts) -> Changes:
    return {
        name: (value, found[name])
        for name, value in stored.items()
        if name in found and found[name] != value
    }


def described(changes: Changes) -> str:
    """Return the changes as text, for example "batch 8, now 16; ranks 1, now 2"."""
    return "; ".join(
        f"{_NAMES.get(name, name)} {stored}, now {found}"
        for name, (stored, found) in changes.items()
    )


def _was(changes: Changes) -> str:
    return " and ".join(f"{_NAMES.get(name, name)} {was}" for name, (was, _) in changes.items())


def _first_reason(error: Exception) -> str:
    """Return the first reason of an error of torch, which lists all tensors after a headline."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 else str(error)).rstrip(".")[:200]
