"""A run's network at a share of its budget: the initial one, or that of a kept checkpoint."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from accelssl.errors import UserError
from accelssl.model.objective import Objective
from accelssl.train.checkpoints import checkpoint, retention
from accelssl.train.checkpoints.resuming import load_weights, refuse_another_network
from accelssl.train.config.config import TrainConfig
from accelssl.train.objective import build

NEAR = 0.02
"""Largest distance of a checkpoint's progress from a share for which no checkpoint was kept."""


@dataclass(frozen=True)
class Kept:
    """The network at `share`: in RUN/name after `step` steps, at `progress`. Without a name, the
    initial network."""

    share: float
    name: str | None = None
    step: int = 0
    progress: float = 0.0


def kept_at(run: Path, config: TrainConfig, shares: tuple[float, ...]) -> list[Kept]:
    """Return the checkpoint kept for each share, or one within NEAR. Raise UserError, naming the
    available shares, if there is none."""
    there = _kept(run, config)
    return [_nearest(share, there, run) for share in shares]


def objective_at(run: Path, config: TrainConfig, kept: Kept) -> Objective:
    """Build the objective with a checkpoint's weights, on the CPU. Raise UserError for a file
    that cannot be read or has another configuration."""
    objective = build(config)
    if kept.name is not None:
        state = checkpoint.load(run, name=kept.name)
        refuse_another_network(run, state, config)
        load_weights(run, state, objective, name=kept.name)
    return objective


def digest_of(objective: Objective) -> str:
    """Return the SHA-256 of the weights and buffers that a checkpoint holds."""
    digest = hashlib.sha256()
    for name, tensor in sorted(objective.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).numpy().tobytes())
    return digest.hexdigest()


def _kept(run: Path, config: TrainConfig) -> list[Kept]:
    found = [Kept(0.0)]
    for path in sorted(run.glob("checkpoint*.pt")):
        state = checkpoint.load(run, at_a_glance=True, name=path.name)
        progress = min(1.0, state.spent / config.budget)
        found.append(Kept(progress, path.name, state.step, progress))
    return found


def _nearest(share: float, there: list[Kept], run: Path) -> Kept:
    (own,) = retention.names(0, 0, [share])
    nearest = min(there, key=lambda kept: (kept.name != own, abs(kept.progress - share)))
    if nearest.name != own and abs(nearest.progress - share) > NEAR:
        shares = sorted({f"{kept.progress:.3f}" for kept in there})
        raise UserError(
            f"{run} has no checkpoint at {share:g} of its budget, only at {', '.join(shares)}.",
            "Name some of these with --checkpoints, or train with --keep-at 0.25,0.5,0.75,1.",
        )
    return Kept(share, nearest.name, nearest.step, nearest.progress)
