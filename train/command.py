"""The command `accelssl train`, from its options to the trained run."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.shards.storage.storage import absolute
from accelssl.train.checkpoints.retention import read_shares
from accelssl.train.config.auto import UNSAID, AutoOptions
from accelssl.train.config.budget import parse_units
from accelssl.train.config.changed_options import refuse_changes
from accelssl.train.config.compression_options import (
    AUTO,
    Compressing,
    another_method,
    refuse_another,
    refuse_contradictions,
)
from accelssl.train.config.config import TrainConfig, override
from accelssl.train.config.config_file import read_config
from accelssl.train.config.new_config import named_recipe, new_config, usual_compression
from accelssl.train.device import pick_device
from accelssl.train.log.progress import Terminal
from accelssl.train.plan import batch_choice
from accelssl.train.plan.auto_batch import BatchChoice, batch_text, choose_batch, smallest_batch
from accelssl.train.precision import pick_precision
from accelssl.train.ranks.distributed import (
    Ranks,
    device_of,
    joined,
    read_ranks,
)
from accelssl.train.run import is_started_anew, run_training
from accelssl.train.session import CONFIG, refuse_a_used_folder


@dataclass(frozen=True)
class Machine:
    """Options that may differ between the parts of a run, besides the place of its data.

    threads: 0 for all cores.
    loading: the loader's options by name, None for the default.
    keep, keep_at: the checkpoints to keep, None for the present setting of the run.
    """

    device: str = "auto"
    precision: str = "auto"
    threads: int = 0
    loading: dict[str, Any] = field(default_factory=dict)
    keep: int | None = None
    keep_at: str | None = None


def train_command(
    *,
    out: Path,
    data: str | None,
    algo: str | None,
    budget: str | None,
    compression: Compressing,
    small: bool,
    options: dict[str, Any],
    machine: Machine,
    resume: bool,
    baseline: bool,
    restart_epoch: bool = False,
    recipe: str | None = None,
    auto: AutoOptions = UNSAID,
) -> int:
    """Start or resume a run in `out`; return the signal that stopped the run, 0 for none.

    recipe: the name of a recipe (see named_recipes.find). The other options override its settings.
    restart_epoch: resume at the next whole epoch, which allows other data, ranks or batch.

    If options["batch"] is "auto", choose the batch by a measurement first. Under torchrun each rank
    calls this function with the same options. If torchrun restarts the run after a failure, the run
    resumes from its checkpoint.
    """
    if restart_epoch and not resume:
        raise UserError("--restart-epoch was given without --resume.", "Give both, or neither.")
    is_measured = options.get("batch") == batch_choice.AUTO
    if is_measured:
        _refuse_to_measure(resume, restart_epoch, compression)
        options = options | {"batch": None}
    placed = read_ranks()
    device = device_of(placed, pick_device(machine.device))
    named = named_recipe(recipe, algo, small, resuming=resume)
    refuse_contradictions(compression, auto)
    options = options | {"budget": None if budget is None else parse_units(budget)}
    with joined(placed, device) as ranks:
        if ranks.from_main(is_started_anew(ranks, out)):
            resume, restart_epoch = True, False
        here = _machine_options(machine, device, data, resume, ranks)
        choice = None
        if resume:
            config = read_config(out / CONFIG, or_else=_or_begin(out))
            here["eval_every"] = options.pop("eval_every", None)
            if restart_epoch:
                here["batch"] = options.pop("batch", None)
            refuse_changes(config, options | {"algo": algo})
            refuse_another(config, compression, auto, usual_compression(named))
            config = override(config, here)
        else:
            if is_measured:
                options["batch"] = smallest_batch(ranks.world)
            if data is None and ranks.is_main:  # the user probably forgot --resume
                refuse_a_used_folder(out)
            config = new_config(
                algo=algo,
                data=data,
                compression=compression,
                auto=auto,
                small=small,
                options=options,
                named=named,
            )
            config = override(config, here)
            if ranks.is_main and (note := another_method(config)):
                Terminal().print(note, soft_wrap=True, markup=False)
            if is_measured:
                choice = _measure_batch(config, out, device, ranks)
                config = replace(config, batch=choice.batch)
        stopped_by = run_training(
            ranks.from_main(config),
            out,
            device,
            resuming=resume,
            baseline=baseline,
            restart_epoch=restart_epoch,
            ranks=ranks,
            choice=choice,
        )
    if placed.is_main and not stopped_by:
        Terminal().print(f"next: accelssl evaluate {out}", soft_wrap=True)
    return stopped_by


def _or_begin(out: Path) -> str:
    """Return a second remedy for --resume without a run: to start one, if the folder allows."""
    return "" if _refusal(out) else "leave --resume out to begin a run there"


def _refuse_to_measure(resume: bool, restart_epoch: bool, compression: Compressing) -> None:
    if compression[2] == AUTO:
        raise UserError(
            "--batch auto was given with --schedule auto, whose stages are not known beforehand.",
            "Give a number of images, or a schedule.",
        )
    if resume:
        other = ", or give a number of images" if restart_epoch else ""
        raise UserError(
            "--batch auto was given with --resume.",
            f"Leave it out, the run goes on with the batch it has{other}.",
        )


def _refusal(out: Path) -> UserError | None:
    try:
        refuse_a_used_folder(out)
    except UserError as error:
        return error
    return None


def _measure_batch(
    config: TrainConfig, out: Path, device: torch.device, ranks: Ranks
) -> BatchChoice:
    """Choose a batch for a new run in `out`, and print the reason."""
    if refusal := ranks.from_main(_refusal(out) if ranks.is_main else None):
        raise refusal  # on all ranks, before anything is measured
    if not ranks.is_main:
        return choose_batch(config, device, ranks)
    console = Terminal()
    with console.status("--batch auto") as status:
        choice = choose_batch(config, device, ranks, status.update)
    said = batch_text(choice, replace(config, batch=choice.batch))
    console.print(said, soft_wrap=True, highlight=False)
    return choice


def _machine_options(
    machine: Machine, device: torch.device, data: str | None, resuming: bool, ranks: Ranks
) -> dict[str, Any]:
    """Return the settings that may differ between the parts of a run, None for unchanged ones."""
    keep = resuming and machine.precision == "auto"
    return machine.loading | {
        "precision": None if keep else pick_precision(machine.precision, device),
        "threads": machine.threads or max(1, len(os.sched_getaffinity(0)) // ranks.local_world),
        # A run may be resumed from another folder.
        "data": None if data is None else absolute(data),
        "keep_latest": machine.keep,
        "keep_at": None if machine.keep_at is None else read_shares(machine.keep_at),
    }
