"""What `accelssl train` does, from options to outcome."""

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.pipeline import hardware_queues
from accelssl.pipeline.compress.compression import Compression
from accelssl.pipeline.storage.storage import absolute
from accelssl.train import batch_choice, checkpoint, named_recipes, recipes
from accelssl.train.auto_batch import BatchChoice, choose_batch, smallest_batch
from accelssl.train.baseline import measure_baseline
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
    ALONE,
    Ranks,
    device_of,
    joined,
    read_ranks,
    this_job,
)
from accelssl.train.gradients.chosen_schedule import write_schedule
from accelssl.train.history import read_history
from accelssl.train.keeping import read_shares
from accelssl.train.ledgers import closing_lines
from accelssl.train.lock import exclusive
from accelssl.train.log import Log
from accelssl.train.loop import train
from accelssl.train.method import ALGORITHMS
from accelssl.train.outline import LastStep, outcome, outline
from accelssl.train.precision import pick_precision
from accelssl.train.report import write_report
from accelssl.train.resuming import Restart, described, finished
from accelssl.train.schedule import constant
from accelssl.train.seen import NAME as PICTURES
from accelssl.train.seen import save_pictures
from accelssl.train.session import CONFIG, JOB, Session, refuse_a_used_folder, resume, start
from accelssl.train.watchers import CollapseNotice, Terminal, progress_bar, tensorboard
from accelssl.train.whole_file import write_whole

DEFAULT_ALGORITHM = "simclr"
DEFAULT_MODEL = "vit_base_patch16_224"
OPTIONS_OF_SOME = {
    "momentum": ("--momentum", ("moco", "dino")),
    "symmetric": ("--symmetric", ("moco",)),
    "mode": ("--mode", ("dino",)),
    "n_local": ("--local-crops", ("dino",)),
    "prototypes": ("--prototypes", ("dino",)),
    "teacher_temp": ("--teacher-temp", ("dino",)),
}
"""Settings that not every method has: by name, the option and who has it."""
BATCH = "batch.json"
"""In the run: what --batch auto has found."""


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
        if ranks.from_main(_is_started_anew(ranks, out)):
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


def _measure_batch(
    config: TrainConfig, out: Path, device: torch.device, ranks: Ranks
) -> BatchChoice:
    """Choose a batch for a new run in `out`, and say why."""
    if not ranks.is_main:
        return choose_batch(config, device, ranks)
    refuse_a_used_folder(out)  # before anything is measured
    console = Terminal()
    with console.status("--batch auto") as status:
        choice = choose_batch(config, device, ranks, status.update)
    said = batch_text(choice, replace(config, batch=choice.batch))
    console.print(said, soft_wrap=True, highlight=False)
    return choice


def _is_started_anew(ranks: Ranks, out: Path) -> bool:
    """Whether torchrun has begun this very run before and starts it again after a failure."""
    job = out / JOB
    has_begun = (out / CONFIG).exists() and job.exists()
    return ranks.restarts > 0 and has_begun and job.read_text() == this_job()


def _forget_earlier_job(ranks: Ranks, out: Path) -> None:
    """A run that an earlier torchrun began, under the same name, is none that this one began."""
    job = out / JOB
    if not ranks.restarts and job.exists() and job.read_text() == this_job():
        job.unlink()


def run_training(
    config: TrainConfig,
    out: Path,
    device: torch.device,
    *,
    resuming: bool,
    baseline: bool,
    restart_epoch: bool = False,
    ranks: Ranks = ALONE,
    choice: BatchChoice | None = None,
) -> int:
    """Train `config` in `out`, with progress bar and report; returns the stopping signal or 0.

    choice: how the batch of a new run was chosen, for its folder.
    """
    with exclusive(out) if ranks.is_main else nullcontext():
        if resuming and (done := ranks.from_main(finished(out, config.budget))):
            if ranks.is_main:
                Terminal().print(done)
                _write_what_a_run_leaves(config, out)
            return 0
        if ranks.is_main and not resuming:
            _forget_earlier_job(ranks, out)
        if resuming:
            session = resume(config, out, device, ranks, restart_epoch=restart_epoch)
        else:
            session = start(config, out, device, ranks)
        if session.restart and ranks.is_main:
            _note_restart(session, session.restart, out)
        if session.changed_versions and ranks.is_main:
            changed = described(session.changed_versions)
            Terminal().print(f"Since the checkpoint was written: {changed}. Losses may differ.")
        if not (out / checkpoint.NAME).exists():
            # A log without a checkpoint then always means that one was lost, and a disk that is
            # too small shows before the first step.
            session.save(out)
        if choice and ranks.is_main:
            _note_batch(choice, out)
        return _train(session, out, baseline)


def _note_batch(choice: BatchChoice, out: Path) -> None:
    write_whole(out / BATCH, json.dumps(choice.to_json(), indent=1))
    proposals = {
        str(each.compression): each.proposal.batch * choice.ranks for each in choice.measured
    }
    with Log(out) as log:
        log.event("batch", batch=choice.batch, proposals=proposals)


def _note_restart(session: Session, restart: Restart, out: Path) -> None:
    """Keep that the run goes on with a whole epoch, so that the next --resume is an ordinary one.

    Killed half-way, it is to be called with --restart-epoch again, which leaves out nothing more.
    """
    session.save(out)
    write_whole(out / CONFIG, json.dumps(session.config.to_json(), indent=1))
    with Log(out) as log:
        log.event("restart_epoch", step=session.step, **restart.to_json())
    Terminal().print(str(restart))


def _train(session: Session, out: Path, baseline: bool) -> int:
    if not session.ranks.is_main:
        return train(session, out)
    if not (out / PICTURES).exists() and not session.config.auto:
        save_pictures(session, out)
    console = Terminal()
    console.print(outline(session))
    last = LastStep()
    with progress_bar(session.config.budget, console) as bar:
        watchers = [bar, last, CollapseNotice(session.config, console)]
        watchers += [w for w in (tensorboard(out),) if w]
        stopped_by = train(session, out, watchers)
    if session.decisions:  # only now it is known what there is to see
        save_pictures(session, out)
    console.print(outcome(session, last))
    if baseline and not stopped_by and session.ranks.world == 1:
        measure_baseline(session, out)
    for said in closing_lines(read_history(out)):
        console.print(said, soft_wrap=True)
    console.print(f"report: {_write_what_a_run_leaves(session.config, out)}")
    return stopped_by


def _write_what_a_run_leaves(config: TrainConfig, out: Path) -> Path:
    """Its report, whose path is returned, and the schedule where it has chosen that itself."""
    if config.auto:
        write_schedule(config, out)
    return write_report(out)


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
    settings = settings_of(compression, (None, None), _usual_compression(named), method)
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
    for name, (option, algorithms) in OPTIONS_OF_SOME.items():
        if options.get(name) is not None and algo not in algorithms:
            raise UserError(
                f"{option} has no effect with {algo}.",
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
