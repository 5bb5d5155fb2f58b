"""A run in memory: what a step needs, from the start or from a checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from accelssl.errors import UserError
from accelssl.model.simclr import SimCLR
from accelssl.pipeline import views
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.pipeline.order import Position
from accelssl.pipeline.shards import ShardSet, open_shards
from accelssl.train import checkpoint
from accelssl.train.budget import Budget
from accelssl.train.checkpoint import Checkpoint
from accelssl.train.config import TrainConfig
from accelssl.train.environment import environment
from accelssl.train.objective import build
from accelssl.train.optim import adamw

CONFIG = "config.json"


@dataclass
class Session:
    """Everything that changes during a run, and the shard set it reads."""

    config: TrainConfig
    device: torch.device
    shards: ShardSet
    loader: Loader
    objective: SimCLR
    optimizer: torch.optim.AdamW
    budget: Budget
    step: int = 0
    images: int = 0
    elapsed_s: float = 0.0

    def save(self, run: Path) -> None:
        """Write a checkpoint of this moment."""
        checkpoint.save(
            run,
            Checkpoint(
                self.step,
                self.budget.spent,
                self.elapsed_s,
                self.images,
                self.loader.position,
                self.shards.digest,
                self.objective.state_dict(),
                self.optimizer.state_dict(),
            ),
        )


def loader_options(config: TrainConfig, device: torch.device) -> LoaderOptions:
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return LoaderOptions(config.batch, config.seed, device, dtype, threads=config.threads)


def run_views(config: TrainConfig) -> tuple[views.View, ...]:
    """The views of the run's method."""
    return views.simclr(config.size, (config.min_area, 1.0))


def start(config: TrainConfig, run: Path, device: torch.device) -> Session:
    """A new run in folder `run`, which must not hold one. Writes its configuration there."""
    if run.exists() and (not run.is_dir() or {file.name for file in run.iterdir()} - {"lock"}):
        raise UserError(
            f"{run} already holds a run or other files.",
            "Continue it with --resume, or name another folder with --out.",
        )
    session = _session(config, device, Position())
    try:
        run.mkdir(parents=True, exist_ok=True)
        (run / CONFIG).write_text(json.dumps(config.to_json(), indent=1))
        (run / "environment.json").write_text(json.dumps(environment(device), indent=1))
    except OSError as error:
        raise UserError(f"{run} cannot be written ({error}).", "Name another --out.") from error
    return session


def resume(config: TrainConfig, run: Path, device: torch.device) -> Session:
    """The run in folder `run` as its last checkpoint left it, or its start if it has none yet."""
    if not (run / checkpoint.NAME).exists() and (run / CONFIG).exists():
        return _session(config, device, Position())
    state = checkpoint.load(run)
    session = _session(config, device, state.position)
    if session.shards.digest != state.digest:
        raise UserError(
            f"{session.shards.location} is not the shard set the run was trained on.",
            "Name the same set with --data; the run folder's config.json says which it was.",
        )
    session.objective.load_state_dict(state.objective)
    session.optimizer.load_state_dict(state.optimizer)
    session.step, session.images = state.step, state.images
    session.elapsed_s, session.budget.spent = state.elapsed_s, state.spent
    return session


def _session(config: TrainConfig, device: torch.device, position: Position) -> Session:
    shards = open_shards(config.data)
    if config.eval_every and "val" not in shards.splits:
        raise UserError(
            f"{shards.location} has no val split for --eval-every.",
            "Leave --eval-every out, or write a set with a val folder.",
        )
    split = shards.split("train")
    loader = Loader(split, run_views(config), loader_options(config, device), position)
    objective = build(config).to(device)
    optimizer = adamw(objective, config.weight_decay)
    return Session(config, device, shards, loader, objective, optimizer, Budget(config.budget))
