"""What `accelssl train` does, from options to outcome."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline import hardware_queues
from accelssl.pipeline.compress.compression import Compression
from accelssl.pipeline.storage.storage import absolute
from accelssl.train import batch_choice, named_recipes, recipes
from accelssl.train.auto_batch import BatchChoice, choose_batch, smallest_batch
from accelssl.train.batch_pages import batch_text
from accelssl.train.budget import parse_units
from accelssl.train.compressing import (
    AUTO,
    AutoOptions,
    Compressing,
    refuse_another,
    refuse_contradictions,
    settings_of,
)
from accelssl.train.config import (
    DEFAULT_COMPRESSION,
    TrainConfig,
    override,
    refuse_changes,
)
from accelssl.train.config_file import read_config
from accelssl.train.distributed import (
    Ranks,
    device_of,
    joined,
    read_ranks,
)
from accelssl.train.keeping import read_shares
from accelssl.train.method import ALGORITHMS
from accelssl.train.precision import pick_precision
from accelssl.train.running import is_started_anew, run_training
from accelssl.train.schedule import constant
from accelssl.train.session import CONFIG, refuse_a_used_folder
from accelssl.train.watchers import Terminal

DEFAULT_ALGORITHM = "simclr"
DEFAULT_MODEL = "vit_base_patch16_224"
OF_SOME = {
    "momentum": ("moco", "dino"),
    "symmetric": ("moco",),
    "mode": ("dino",),
    "n_local": ("dino",),
    "prototypes": ("dino",),
    "teacher_temp": ("dino",),
}
"""Settings that not every method has, and who has them."""


@dataclass(frozen=True)
class Machine:
    """What may differ between the parts of a run, besides where its data lies.

    threads 0: all cores. loading: the loader's options by name, None for the default. keep and
    keep_at: which checkpoints stay, None for what the run had before.
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
    auto: AutoOptions = (None, None),
) -> int:
    """Start or resume a run in `out`; returns the signal that stopped it, 0 for none.

    recipe: the name of one in named_recipes, which the other options override.

    With restart_epoch a resumed run goes on with a whole epoch: on other data or ranks, or with
    another batch. With options["batch"] "auto" it is measured first. Under torchrun each rank calls
    this with the same options; a run that torchrun has started anew after a failure goes on from
    its checkpoint.
    """
    if restart_epoch and not resume:
        raise UserError("--restart-epoch was given without --resume.", "Give both, or neither.")
    is_measured = options.get("batch") == batch_choice.AUTO
    if is_measured:
        _refuse_to_measure(resume, restart_epoch, compression)
        options = options | {"batch": None}
    placed = read_ranks()
    device = device_of(placed, pick_device(machine.device))
    named = _named_recipe(recipe, algo, small, resume)
    refuse_contradictions(compression, auto)
    usual = _usual_compression(named)
    options = options | {"budget": None if budget is None else parse_units(budget)}
    with joined(placed, device) as ranks:
        if ranks.from_main(is_started_anew(ranks, out)):
            resume, restart_epoch = True, False
        here = _machine_options(machine, device, data, resume, ranks)
        choice = None
        if resume:
            config = read_config(out / CONFIG, "leave --resume out to begin a run there")
            if restart_epoch:
                here["batch"] = options.pop("batch", None)
            refuse_changes(config, options | {"algo": algo})
            refuse_another(config, compression, auto, usual)
            config = override(config, here)
        else:
            if is_measured:
                options["batch"] = smallest_batch(ranks.world)
            method = _algorithm(algo, named)
            chosen = options | settings_of(compression, auto, usual, method)
            config = override(_recipe(method, data, chosen, small, named), here)
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
    """Choose a batch for a new run in `out`, and say why."""
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


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N. UserError when torch cannot use it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"Device {name!r} is not known.", "Use auto, cpu, cuda or cuda:N."
        ) from None
    if device.type == "cuda":
        hardware_queues.tell_once()
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"There is no {name}: torch sees {torch.cuda.device_count()} CUDA devices.",
            "Use --device cpu, or check the driver with nvidia-smi.",
        )
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"Device {name!r} is not supported.", "Use auto, cpu, cuda or cuda:N.")
    return device


def _named_recipe(
    name: str | None, algo: str | None, small: bool, resuming: bool
) -> named_recipes.Recipe | None:
    """UserError for an unknown name, or beside options that choose another or none at all."""
    if small and resuming:
        raise UserError("--small was given with --resume.", "Leave it out: the run has its own.")
    if name is None:
        return None
    found = named_recipes.find(name)
    if resuming:
        raise UserError("--recipe was given with --resume.", "Leave it out: the run has its own.")
    for option, is_given in (("--algo", algo is not None), ("--small", small)):
        if is_given:
            raise UserError(
                f"{option} was given together with --recipe {name}.",
                f"Leave {option} out: the recipe says what it is.",
            )
    return found


def new_config(
    *,
    algo: str | None,
    data: str | None,
    budget: float | None,
    compression: Compressing,
    small: bool,
    options: dict[str, Any],
    recipe: str | None,
) -> TrainConfig:
    """What `train_command` would begin with, before it looks at the machine. UserError as there,
    and for --schedule auto, whose stages are known to nobody yet."""
    if compression[2] == AUTO:
        raise UserError(
            "A run with --schedule auto chooses its compressions while it trains: what it will "
            "cost is not known before.",
            "Plan it with --patch 16 --drop 0, which is the dearest that it can choose.",
        )
    named = _named_recipe(recipe, algo, small, resuming=False)
    refuse_contradictions(compression, (None, None))
    method = _algorithm(algo, named)
    usual = _usual_compression(named)
    settings = settings_of(compression, (None, None), usual, method, may_choose=False)
    return _recipe(method, data, options | settings | {"budget": budget}, small, named)


def _algorithm(algo: str | None, named: named_recipes.Recipe | None) -> str:
    found = algo or (named.make("").algo if named else DEFAULT_ALGORITHM)
    if found not in ALGORITHMS:
        raise UserError(f"The algorithm {found!r} is not known.", f"Use {', '.join(ALGORITHMS)}.")
    return found


def _usual_compression(named: named_recipes.Recipe | None) -> Compression:
    """Where --patch or --drop is given without the other: the recipe's, if it has but one."""
    stages = named.make("").schedule.stages if named else ()
    return stages[0].compression if len(stages) == 1 else DEFAULT_COMPRESSION


def _recipe(
    algo: str,
    data: str | None,
    options: dict[str, Any],
    small: bool,
    named: named_recipes.Recipe | None,
) -> TrainConfig:
    if data is None:
        raise UserError("No shard set was named.", "Name its folder with --data.")
    if options["budget"] is None and named is None:
        raise UserError("No budget was given.", "Say what to spend, for example --budget 0.2M.")
    for name, algorithms in OF_SOME.items():
        if options.get(name) is not None and algo not in algorithms:
            raise UserError(
                f"{option_of(name)} has no effect with {algo}.",
                f"Leave it out, or use --algo {' or '.join(algorithms)}.",
            )
    given = {name: value for name, value in options.items() if value is not None}
    if named is not None:
        return named.make(data, **given)
    return recipes.RECIPES[algo, small](
        given.pop("model", DEFAULT_MODEL),
        data,
        given.pop("budget"),
        given.pop("schedule", constant(DEFAULT_COMPRESSION)),
        **given,
    )


def _machine_options(
    machine: Machine, device: torch.device, data: str | None, resuming: bool, ranks: Ranks
) -> dict[str, Any]:
    """What may differ between the parts of a run: where it runs and where its data lies."""
    keep = resuming and machine.precision == "auto"
    return machine.loading | {
        "precision": None if keep else pick_precision(machine.precision, device),
        "threads": machine.threads or max(1, len(os.sched_getaffinity(0)) // ranks.local_world),
        # A run may be resumed from another folder.
        "data": None if data is None else absolute(data),
        "keep_latest": machine.keep,
        "keep_at": None if machine.keep_at is None else read_shares(machine.keep_at),
    }
