"""The training loop, which charges each step by its tokens until the budget is spent."""

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
    """Train until the budget is spent or a signal asks to stop; return the signal, 0 for none.

    heard: called as soon as a signal arrives.

    Rank 0 writes RUN/log.jsonl and RUN/checkpoint.pt: every five minutes, at each share of the
    budget in keep_at, and at the end. All ranks stop after the same step and return the same value.
    All ranks raise UserError if a loss is not finite or a checkpoint cannot be written.
    RUN/checkpoint.pt is then the last good checkpoint.
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
                _save(session, log)  # the decision is expensive: do not repeat it after a kill
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
    """Return the batch of a step in `stage`, and announce the compression of the next batch.

    then: the progress at the next step, None if this step is the last. A later decision about the
    schedule may change the compression of the next batch. If the loader raises UserError on a
    single rank, save a checkpoint first.
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
    """Choose the compression from `share` of the budget on, by the present gradient errors.

    Return False if a signal arrives first. The training seconds and units of the run exclude the
    cost of the choice, which the log records separately.
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
    """Save a checkpoint, unless the log has a failure such as a loss that is not finite.

    If the checkpoint cannot be written, set the log's failure: all ranks then stop.
    """
    log.flush()
    if not log.failure:
        try:
            session.save(log.run)
        except UserError as error:
            log.failure = error


def _stop_at_failure(session: Session, log: Log) -> None:
    """Raise UserError on all ranks if the log of rank 0 has a failure."""
    failure = session.ranks.from_main(log.failure)
    if not failure:
        return
    with suppress(OSError):  # the disk may have failed
        log.event("end", step=session.step, spent=session.budget.spent, reason="failure")
    raise failure


def step_of(session: Session) -> Step:
    """Return the training step of a run."""
    return Step(
        session.objective,
        session.optimizer,
        session.config.precision,
        replica=session.replica,
        seed=session.config.seed,
        steps=session.step,
    )


def evaluate(session: Session, log: Log) -> None:
    """Log nn1 and knn20 of the present encoder. Training seconds exclude the evaluation."""
    log.flush()
    if log.failure:
        return
    started = time.perf_counter()
    options = evaluation_options(session.config, session.device)
    extracts = {"trained": encoder_features(session.objective.evaluated)}
    try:
        scores = neighbours_of(session.shards, extracts, options)["trained"]
    except UserError as error:  # the other ranks wait: all ranks stop at the next step
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
    """Return the number of evaluations that are due at the present progress."""
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
