"""Training of a configuration in a run folder, with progress bar, log and report."""

import json
from contextlib import closing, nullcontext
from pathlib import Path

import torch

from accelssl.files import write_whole
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.progress_lines import telling
from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.checkpoints.resuming import Restart, described, finished
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import config_text
from accelssl.train.gradients.chosen_schedule import write_schedule
from accelssl.train.log.log import Log
from accelssl.train.log.progress import CollapseNotice, Terminal, progress_bar, tensorboard
from accelssl.train.log.run_text import LastStep, outcome, outline
from accelssl.train.loop import train
from accelssl.train.plan.auto_batch import BatchChoice
from accelssl.train.ranks.distributed import ALONE, Ranks, this_job
from accelssl.train.report.baseline import measure_baseline, wants_baseline
from accelssl.train.report.cost_accounting import closing_lines
from accelssl.train.report.history import read_history
from accelssl.train.report.report import write_report
from accelssl.train.report.sample_crops import NAME as PICTURES
from accelssl.train.report.sample_crops import save_pictures
from accelssl.train.session import CONFIG, JOB, Session, resume, start, write_config

BATCH = "batch.json"
"""File in the run folder with the measurements of --batch auto."""
STOPPING = "Stopping after this step, with a checkpoint; a second Ctrl-C ends it at once."


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
    """Train `config` in `out` with progress bar and report; return the stopping signal or 0.

    choice: the measurements behind the batch of a new run, to be written to its folder.
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
        elif resuming and ranks.is_main:
            _note_where_it_runs(session, out)
        if session.changed_versions and ranks.is_main:
            changed = described(session.changed_versions)
            Terminal().print(f"Since the checkpoint was written: {changed}. Losses may differ.")
        if not (out / checkpoint.NAME).exists():
            # With this first checkpoint, a log without a checkpoint always means a lost file, and a
            # disk that is too small raises an error before the first step.
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
    """Save the restart at a whole epoch, so that the next --resume needs no --restart-epoch.

    If the process is killed here, the user has to repeat --restart-epoch. The repetition skips no
    further images.
    """
    session.save(out)
    write_config(out, session.config)
    with Log(out) as log:
        log.event("restart_epoch", step=session.step, **restart.to_json())
    Terminal().print(str(restart))


def _note_where_it_runs(session: Session, out: Path) -> None:
    """Write the changed settings to config.json, for the next --resume and for evaluations."""
    if config_text(session.config) != (out / CONFIG).read_text():
        write_config(out, session.config)


def _train(session: Session, out: Path, baseline: bool) -> int:
    if not session.ranks.is_main:
        with closing(session.loader):
            return train(session, out)
    if not (out / PICTURES).exists() and not session.config.auto:
        save_pictures(session, out)
    console = Terminal()
    console.print(outline(session))
    last = LastStep()
    with progress_bar(session.config.budget, console, chooses=bool(session.config.auto)) as bar:
        watchers = [bar, last, CollapseNotice(session.config, console)]
        watchers += [w for w in (tensorboard(out),) if w]
        with closing(session.loader):
            stopped_by = train(session, out, watchers, lambda: console.print(STOPPING))
    if session.decisions:  # the pictures show the compressions chosen in the run
        save_pictures(session, out)
    console.print(outcome(session, last))
    alone = session.ranks.world == 1
    if baseline and not stopped_by and alone and wants_baseline(session):
        console.print(
            f"Timing uncompressed steps ({UNCOMPRESSED}) of {session.config.batch} images, for the "
            "speed-up in the report; accelssl train --no-baseline leaves that out.",
            soft_wrap=True,
        )
        try:
            with telling() as tell:
                tell("timing uncompressed steps")
                measure_baseline(session, out)
        except KeyboardInterrupt:
            console.print("Interrupted: the report is without that speed-up. The run is complete.")
    try:
        for said in closing_lines(read_history(out)):
            console.print(said, soft_wrap=True)
        console.print(f"report: {_write_what_a_run_leaves(session.config, out)}")
    except KeyboardInterrupt:
        console.print(f"Interrupted. The run is saved; accelssl report {out} writes its report.")
        raise
    return stopped_by


def _write_what_a_run_leaves(config: TrainConfig, out: Path) -> Path:
    """Write the report and any schedule that the run has chosen; return the report's path."""
    if config.auto:
        write_schedule(config, out)
    return write_report(out)


def is_started_anew(ranks: Ranks, out: Path) -> bool:
    """Return True if this torchrun job began the run and restarts it after a failure."""
    job = out / JOB
    has_begun = (out / CONFIG).exists() and job.exists()
    return ranks.restarts > 0 and has_begun and job.read_text() == this_job()


def _forget_earlier_job(ranks: Ranks, out: Path) -> None:
    """Remove RUN/job if an earlier torchrun job with the same name wrote the file."""
    job = out / JOB
    if not ranks.restarts and job.exists() and job.read_text() == this_job():
        job.unlink()
