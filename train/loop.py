"""The training loop: a step costs what its tokens cost, until the budget is spent."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from accelssl.errors import UserError
from accelssl.pipeline.loader import Batch
from accelssl.train.config.flops import ModelShape, image_flops
from accelssl.train.config.schedule import Stage
from accelssl.train.evaluate.features import encoder_features, evaluation_options
from accelssl.train.evaluate.neighbours import neighbours_of
from accelssl.train.gradients.auto_schedule import Abandoned, decide
from accelssl.train.log.loader_guard import LoaderGuard
from accelssl.train.log.log import Log, SilentLog, Watcher
from accelssl.train.optim.adamw import learning_rate
from accelssl.train.out_of_memory import is_out_of_memory
from accelssl.train.ranks.distributed import FAILED, Votes
from accelssl.train.ranks.interrupt import Interruption, interruption
from accelssl.train.session import Session
from accelssl.train.step import Step

CHECKPOINT_S = 300.0


def train(
    session: Session,
    run: Path,
    watchers: Sequence[Watcher] = (),
    heard: Callable[[], None] = lambda: None,
) -> int:
    """Train until the budget is spent, or a signal asks to stop, of which `heard` is told at once.

    Rank 0 writes RUN/log.jsonl and RUN/checkpoint.pt (every five minutes, where one is to be kept,
    and at the end). All ranks stop after the same step and return the signal that stopped them, 0
    for none. UserError on all of them when a loss is not finite, or a checkpoint cannot be written;
    RUN/checkpoint.pt is then the last that was good.
    """
    config, budget, ranks = session.config, session.budget, session.ranks
    evaluated, stopped_by = _milestone(session), 0
    votes = Votes(ranks)
    step, guard = step_of(session), LoaderGuard(config.batch)
    flops_at = cache(partial(image_flops, ModelShape.of(session.objective), config))
    log = Log(run, list(watchers)) if ranks.is_main else SilentLog(run)
    with log, interruption(heard) as interrupted:
        log.start_clock(session.elapsed_s, session.images, budget.spent)
        if session.step:
            changed = {"changed_versions": session.changed_versions}
            log.event("resume", step=session.step, spent=budget.spent, **changed)
        tick = saved_at = time.perf_counter()
        while not budget.is_spent and not (
            stopped_by := votes.cast(FAILED if log.failure else interrupted.signal)
        ):
            if (share := session.to_decide) is not None:
                if not _choose(session, share, log, interrupted):
                    stopped_by = interrupted.signal
                    break
                _save(session, log)  # what has cost so much is not to be done twice
                tick = saved_at = time.perf_counter()
            progress = budget.progress
            stage = session.schedule.at(progress)
            rate = learning_rate(progress, config.peak_lr, config.warmup)
            then = budget.after(config.batch, config.sample_cost(stage))
            batch = _next_batch(session, log, stage, None if then.is_spent else then.progress)
            was_late = step.is_idle
            step(batch, rate, progress)

            budget.charge(config.batch, config.sample_cost(stage))
            session.step += 1
            session.images += config.batch
            tick = _advance(session, tick)
            line = _line(session, stage, batch, rate) | {"image_flops": flops_at(stage)}
            log.step(line, step.losses_R, step.noted)
            if finding := guard.finding(stage, was_late):
                log.event("loader_limits", **finding)
            if (milestone := _milestone(session)) > evaluated:
                evaluated = milestone
                if ranks.is_main:
                    evaluate(session, log)
                ranks.wait()
                tick = time.perf_counter()
            is_due = time.perf_counter() - saved_at > CHECKPOINT_S
            if is_due or (session.shares_to_keep and not budget.is_spent):
                _save(session, log)
                saved_at = time.perf_counter()
        votes.close()
        _save(session, log)
        _stop_at_failure(session, log)
        log.event(
            "end",
            step=session.step,
            spent=budget.spent,
            elapsed_s=session.elapsed_s,
            reason="budget" if budget.is_spent else "interrupted",
        )
        return stopped_by


def _next_batch(session: Session, log: Log, stage: Stage, then: float | None) -> Batch:
    """The batch of a step in `stage`; the one after it will be for progress `then`, if any, as far
    as the schedule is known by now.

    What has been trained is logged and saved when there is none to be had.
    """
    config = session.config
    following = None if then is None else config.compressions(session.schedule.at(then))
    try:
        return session.loader.next(config.compressions(stage), following)
    except UserError:
        if session.ranks.world == 1:
            _save(session, log)
        raise


def _choose(session: Session, share: float, log: Log, interrupted: Interruption) -> bool:
    """The compression from `share` of the budget on, by gradient errors as they are now.

    False where a signal came first. Training seconds and units do not count what that takes: the
    log has both.
    """
    log.flush()
    _stop_at_failure(session, log)
    log.event("estimating", share=share)
    try:
        decision = decide(session, share, lambda: bool(interrupted.signal))
    except Abandoned:
        return False
    session.decide(decision)
    log.event("estimate", **decision.to_json(), spent=session.budget.spent)
    log.start_clock(session.elapsed_s, session.images, session.budget.spent)
    return True


def _save(session: Session, log: Log) -> None:
    """A checkpoint, unless the losses up to here say that there is nothing worth saving.

    Where it cannot be written that is a failure too, at which all ranks stop.
    """
    log.flush()
    if not log.failure:
        try:
            session.save(log.run)
        except UserError as error:
            log.failure = error


def _stop_at_failure(session: Session, log: Log) -> None:
    """UserError on all ranks, if rank 0 has found that the run cannot go on."""
    failure = session.ranks.from_main(log.failure)
    if not failure:
        return
    with suppress(OSError):  # the disk may be what has failed
        log.event("end", step=session.step, spent=session.budget.spent, reason="failure")
    raise failure


def step_of(session: Session) -> Step:
    """The step of a run: what changes its weights."""
    return Step(
        session.objective,
        session.optimizer,
        session.config.precision,
        replica=session.replica,
        seed=session.config.seed,
        steps=session.step,
    )


def evaluate(session: Session, log: Log) -> None:
    """nn1 and knn20 of the encoder as it is, into the log. Training seconds do not count it."""
    log.flush()
    if log.failure:
        return
    started = time.perf_counter()
    options = evaluation_options(session.config, session.device)
    extracts = {"trained": encoder_features(session.objective.evaluated)}
    try:
        scores = neighbours_of(session.shards, extracts, options)["trained"]
    except UserError as error:  # other ranks are waiting: all stop at the next step
        log.failure = error
        return
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        _save(session, log)
        log.failure = log.failure or UserError(
            f"An evaluation beside training does not fit the memory of {session.device}.",
            f"{log.run} is saved: go on with --resume --eval-every 0, and evaluate it at the end.",
        )
        return
    log.event(
        "eval",
        step=session.step,
        spent=session.budget.spent,
        progress=session.budget.progress,
        elapsed_s=session.elapsed_s,
        seconds=time.perf_counter() - started,
        **scores,
    )
    log.start_clock(session.elapsed_s, session.images, session.budget.spent)


def _advance(session: Session, tick: float) -> float:
    now = time.perf_counter()
    session.elapsed_s += now - tick
    return now


def _milestone(session: Session) -> int:
    """How many evaluations are due by now."""
    every = session.config.eval_every
    return int(session.budget.progress / every + 1e-9) if every else 0


def _line(session: Session, stage: Stage, batch: Batch, rate: float) -> dict[str, float]:
    compression = stage.compression
    return {
        "step": session.step,
        "epoch": batch.epoch,
        "images": session.images,
        "spent": session.budget.spent,
        "progress": session.budget.progress,
        "lr": rate,
        "p": compression.p,
        "drop": compression.drop,
        "keep": compression.keep(session.config.size),
        "sample_cost": session.config.sample_cost(stage),
        "elapsed_s": round(session.elapsed_s, 4),
    }
