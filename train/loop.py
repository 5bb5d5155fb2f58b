"""The training loop: a step costs what its tokens cost, until the budget is spent."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from accelssl.pipeline.loader import Batch
from accelssl.train.evaluate.features import encoder_features
from accelssl.train.evaluate.run import evaluation_options, neighbours_of
from accelssl.train.interrupt import interruption
from accelssl.train.log import Log, Watcher
from accelssl.train.optim import learning_rate, set_learning_rate
from accelssl.train.schedule import Stage
from accelssl.train.session import Session

CHECKPOINT_S = 300.0


def train(session: Session, run: Path, watchers: Sequence[Watcher] = ()) -> int:
    """Train until the budget is spent, or a signal asks to stop.

    Writes RUN/log.jsonl and RUN/checkpoint.pt (every five minutes and at the end). Returns the
    number of the signal that stopped it, 0 for none.
    """
    config, budget = session.config, session.budget
    evaluated = _milestone(session)
    with Log(run, list(watchers)) as log, interruption() as interrupted:
        log.start_clock(session.elapsed_s, session.images, budget.spent)
        if session.step:
            log.event("resume", step=session.step, spent=budget.spent)
        tick = saved_at = time.perf_counter()
        while not budget.is_spent and not interrupted:
            stage = config.schedule.at(budget.progress)
            rate = learning_rate(budget.progress, config.peak_lr, config.warmup)
            batch = session.loader.next((stage.compression, stage.compression))
            loss = step(session, batch, rate)

            budget.charge(config.batch, config.sample_cost(stage))
            session.step += 1
            session.images += config.batch
            tick = _advance(session, tick)
            log.step(_line(session, stage, batch, rate), loss)
            if (milestone := _milestone(session)) > evaluated:
                evaluated = milestone
                evaluate(session, log)
                tick = time.perf_counter()
            if time.perf_counter() - saved_at > CHECKPOINT_S:
                log.flush()
                session.save(run)
                saved_at = time.perf_counter()
        log.flush()
        session.save(run)
        log.event(
            "end",
            step=session.step,
            spent=budget.spent,
            elapsed_s=session.elapsed_s,
            reason="budget" if budget.is_spent else "interrupted",
        )
        return 0 if budget.is_spent else interrupted.signal


def step(session: Session, batch: Batch, rate: float) -> Tensor:
    """Forward, backward, AdamW at learning rate `rate`. The loss stays on the device."""
    set_learning_rate(session.optimizer, rate)
    bf16 = session.config.precision == "bf16"
    with torch.autocast(session.device.type, torch.bfloat16, enabled=bf16):
        loss: Tensor = session.objective(*batch.views)
    session.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    session.optimizer.step()
    return loss


def evaluate(session: Session, log: Log) -> None:
    """nn1 and knn20 of the encoder as it is, into the log. Training seconds do not count it."""
    log.flush()
    started = time.perf_counter()
    options = evaluation_options(session.config, session.device)
    extracts = {"trained": encoder_features(session.objective.encoder)}
    scores = neighbours_of(session.shards, extracts, options)["trained"]
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
