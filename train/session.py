"""Session: the state of a run in memory, from the start or from a checkpoint."""

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from accelssl.errors import UserError
from accelssl.files import write_whole
from accelssl.model.objective import Objective
from accelssl.pipeline.draws.draw_version import DRAW_VERSION, decoder_versions
from accelssl.pipeline.draws.order import Position
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.pipeline.views import View
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.train.checkpoints import checkpoint, retention
from accelssl.train.checkpoints.checkpoint import Checkpoint
from accelssl.train.checkpoints.lock import LOCK
from accelssl.train.checkpoints.resuming import (
    Changes,
    Restart,
    changed_stream,
    changed_versions,
    fixed_of,
    load_weights,
    refuse_a_lost_checkpoint,
    refuse_another_network,
    refuse_another_stream,
    stream_of,
    versions,
)
from accelssl.train.config.budget import Budget
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import config_text
from accelssl.train.config.named_recipes import recipe_text
from accelssl.train.config.schedule import Schedule
from accelssl.train.gradients.decision import Decision, decision_of, schedule_of
from accelssl.train.gradients.sample_size import affordable
from accelssl.train.log.environment import environment
from accelssl.train.objective import build
from accelssl.train.optim.adamw import AdamW, adamw
from accelssl.train.ranks.distributed import ALONE, Ranks, replicate, this_job

CONFIG = "config.json"
RECIPE = "recipe.toml"
"""File with the recipe that repeats the run on any machine."""
JOB = "job"
"""File with the torchrun job that began the run. Only this job resumes the run without --resume."""
ENVIRONMENT = "environment.json"
# Files of a start in the order of writing. A folder holds a run once the last file exists.
_OF_A_START = JOB, ENVIRONMENT, RECIPE, CONFIG
_UNFINISHED = {LOCK, JOB, ENVIRONMENT, RECIPE, *(f"{name}.part" for name in _OF_A_START)}
"""Names of the files that an unfinished start may leave in a folder without a run."""


@dataclass
class Session:
    """State of a run that changes during training, and the shard set that the run reads.

    replica: the module that a step calls. On one rank this is the objective, on several ranks the
    wrapper that averages the gradients of the objective.
    kept_at: the progress up to which checkpoints were kept.
    changed_versions: packages whose version differs from the checkpoint that the run resumed from.
    schedule: the schedule of the configuration, or the one decided so far.
    """

    config: TrainConfig
    device: torch.device
    shards: ShardSet
    loader: Loader
    objective: Objective
    replica: nn.Module
    optimizer: AdamW
    budget: Budget
    step: int = 0
    images: int = 0
    elapsed_s: float = 0.0
    restart: Restart | None = None
    ranks: Ranks = ALONE
    kept_at: float = -1.0
    changed_versions: Changes = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        self.decide()

    def decide(self, *made: Decision) -> None:
        """Add decisions and update the schedule."""
        self.decisions = [*self.decisions, *made]
        self.schedule = schedule_of(self.decisions) if self.decisions else self.config.schedule

    @property
    def to_decide(self) -> float | None:
        """Return the share of the budget whose compression must be chosen before the next step.

        Return None if no choice is due.
        """
        if self.config.auto is None:
            return None
        reached = self.config.auto.reached(self.budget.progress)
        is_done = bool(self.decisions) and self.decisions[-1].share >= reached
        return None if is_done else reached

    @property
    def shares_to_keep(self) -> list[float]:
        """Return the shares in keep_at that the run has reached since the last checkpoint."""
        return retention.passed(self.config.keep_at, self.kept_at, self.budget.progress)

    def save(self, run: Path) -> None:
        """Write a checkpoint of the present state on rank 0. All ranks hold the same state."""
        also_as = retention.names(self.step, self.config.keep_latest, self.shares_to_keep)
        self.kept_at = self.budget.progress
        if not self.ranks.is_main:
            return
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
                fixed_of(self.config),
                stream_of(self.loader.options),
                versions(),
                [decision.to_json() for decision in self.decisions],
            ),
            also_as,
        )
        retention.remove_old(run, self.config.keep_latest)


def loader_options(
    config: TrainConfig, device: torch.device, ranks: Ranks = ALONE
) -> LoaderOptions:
    """Return the loader's options for this rank.

    Raise UserError if the batch is not divisible by the number of ranks.
    """
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    share = ranks.share(config.batch)
    return LoaderOptions(
        share,
        config.seed,
        device,
        dtype,
        ranks.rank,
        ranks.world,
        threads=config.threads,
        readers=config.readers,
        prefetch=config.prefetch,
        hw_load=config.hw_load,
        decoders=config.decoders,
        preallocated_px=config.preallocated_px,
    )


def run_views(config: TrainConfig) -> tuple[View, ...]:
    """Return the views of the run's method."""
    return config.method.views()


def refuse_a_used_folder(run: Path) -> None:
    """Raise UserError if the folder holds more than the files of an unfinished start."""
    if run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file.", "Name a folder with --out.")
    there = {file.name for file in run.iterdir()} if run.exists() else set()
    if there - _UNFINISHED:
        go_on = "Continue it with --resume, or name" if CONFIG in there else "Name"
        if CONFIG not in there and checkpoint.NAME in there:
            go_on = f"Put its {CONFIG} back and continue it with --resume, or name"
        raise UserError(
            f"{run} already holds a run or other files.", f"{go_on} another folder with --out."
        )


def write_config(run: Path, config: TrainConfig) -> None:
    """Write RUN/recipe.toml and RUN/config.json, the latter last."""
    write_whole(run / RECIPE, recipe_text(config))
    write_whole(run / CONFIG, config_text(config))


def start(config: TrainConfig, run: Path, device: torch.device, ranks: Ranks = ALONE) -> Session:
    """Return a new run in folder `run`, which must not hold one. Rank 0 writes its configuration.

    Ignore the files of a start that was killed. If this start fails, remove its files.
    """
    if not ranks.is_main:
        return _session(config, device, Position(), ranks)
    refuse_a_used_folder(run)
    session = _session(config, device, Position(), ranks)
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_whole(run / JOB, this_job())
        write_whole(run / ENVIRONMENT, json.dumps(environment(device), indent=1))
        write_config(run, config)
    except OSError as error:
        for name in _OF_A_START:
            with suppress(OSError):
                (run / name).unlink()
        raise UserError(
            f"{run} cannot be written ({error.strerror}).", "Name another --out."
        ) from error
    return session


def resume(
    config: TrainConfig,
    run: Path,
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    restart_epoch: bool = False,
) -> Session:
    """Return the run in folder `run` at its last checkpoint, or at step 0 without a checkpoint.

    restart_epoch: continue with the next whole epoch. The data may then have changed: see
    Session.restart.

    Raise UserError if a change makes an identical continuation impossible, or if the checkpoint was
    lost.
    """
    if not (run / checkpoint.NAME).exists() and (run / CONFIG).exists():
        refuse_a_lost_checkpoint(run)
        return _session(config, device, Position(), ranks)
    state = checkpoint.load(run)
    refuse_another_network(run, state, config)
    restart = Restart(state.position) if restart_epoch else None
    session = _session(config, device, restart.start if restart else state.position, ranks)
    stream = stream_of(session.loader.options)
    changes = changed_stream(state, stream, session.shards.digest)
    if restart:
        session.restart = replace(restart, changes=changes)
    else:
        refuse_another_stream(changes, session.shards.location)
    load_weights(run, state, session.objective, session.optimizer)
    session.step, session.images = state.step, state.images
    session.elapsed_s, session.budget.spent = state.elapsed_s, state.spent
    session.kept_at = session.budget.progress
    session.changed_versions = changed_versions(state)
    session.decide(*map(decision_of, state.decisions))
    return session


def _session(
    config: TrainConfig, device: torch.device, position: Position, ranks: Ranks
) -> Session:
    if config.auto:
        affordable(config)  # raises UserError for a budget that is too small
    shards = open_shards(config.data)
    _refuse_other_data(ranks, shards)
    if config.eval_every and "val" not in shards.splits:
        raise UserError(
            f"{shards.location} has no val split for --eval-every.",
            "Leave --eval-every out, or write a set with a val folder.",
        )
    if config.eval_every and len(shards.classes) < 2:
        raise UserError(
            f"{shards.location} has one class: --eval-every would find every answer right.",
            "Leave --eval-every out, and evaluate on a set with classes.",
        )
    split = shards.split("train")
    loader = Loader(split, run_views(config), loader_options(config, device, ranks), position)
    objective = build(config).to(device)
    replica = replicate(objective, device)
    optimizer = adamw(
        objective,
        config.weight_decay,
        decays_vectors=config.decays_vectors,
        final_weight_decay=config.final_weight_decay,
        clip=config.clip,
    )
    budget = Budget(config.budget)
    return Session(
        config, device, shards, loader, objective, replica, optimizer, budget, ranks=ranks
    )


def _refuse_other_data(ranks: Ranks, shards: ShardSet) -> None:
    """Raise UserError if this rank reads another shard set than rank 0, or decodes differently."""
    here = {"shard set": shards.digest, "draws": DRAW_VERSION, **decoder_versions()}
    there = ranks.from_main(here)
    for name, value in here.items():
        if value != there[name]:
            raise UserError(
                f"{shards.location} is not the same on all ranks: {name} {value} here, "
                f"{there[name]} on rank 0.",
                "Copy the set and install the same versions everywhere.",
            )
