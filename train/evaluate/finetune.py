"""Fine-tuning: train the whole network with labels, at p = 16 without token dropping."""

import math
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.shards.shard_set import ShardSet
from accelssl.shards.write.worker_pool import usable_cores
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.evaluate import finetune_state
from accelssl.train.evaluate.backbone import Pictures
from accelssl.train.evaluate.finetune_data import (
    Batch,
    FinetunePlan,
    SplitPictures,
    batches,
    steps_per_epoch,
)
from accelssl.train.evaluate.finetune_network import architecture_of, fingerprint
from accelssl.train.evaluate.finetune_settings import FinetuneSettings
from accelssl.train.evaluate.finetune_state import FinetuneState
from accelssl.train.evaluate.finetune_step import Trainee, begin, count_right, train_step
from accelssl.train.ranks.distributed import ALONE, Ranks, Votes, read_ranks
from accelssl.train.ranks.interrupt import interruption


def finetune(
    vit: nn.Module,
    shards: ShardSet,
    settings: FinetuneSettings,
    device: torch.device,
    out: Path | None,
    show: bool,
    *,
    pictures: Pictures = Pictures(),  # noqa: B008, frozen
    ranks: Ranks = ALONE,
    workers: int | None = None,
    is_compiled: bool | None = None,
) -> dict[str, Any]:
    """Train a copy of `vit` on the train split and return its accuracies on val.

    vit: a timm VisionTransformer with its weights; it stays unchanged. pictures: mean and standard
    deviation of its pretraining; the size comes from `vit`. workers: decoding processes on this
    rank (None: one a core; 0: decode in this process). is_compiled: None means on a GPU, where the
    forward pass runs in bfloat16 too.

    The result has top1 and top5 in per cent after the last epoch, and their counts right1 and
    right5 of `images`. It also has best_top1 and best_epoch (selected on val), ema_top1 if there is
    a moving average, `history` by epoch, preset, epochs, batch, peak_lr, classes, trained_on and
    seconds. With fewer than five classes top5 is 100.

    With `out`, a checkpoint is written there after each epoch and on SIGINT or SIGTERM, after which
    the process exits with 128 + the signal. The same call resumes and reaches the identical end,
    bit by bit on a CPU: every draw is a function of seed, epoch and place. A finished fine-tuning
    is not repeated.

    Under torchrun every rank calls this function inside `joined` with its ranks, and all return the
    same. Raise UserError for a set without val split, a batch that is too large or does not divide,
    a network that is not a VisionTransformer, and a loss or logits that are not finite.
    """
    if ranks is ALONE and read_ranks().world > 1:
        raise UserError(
            "Fine-tuning was started by torchrun, but its ranks are not connected.",
            "Start it without torchrun, on one GPU.",
        )
    _refuse(shards, settings, ranks)
    architecture = architecture_of(vit)
    pictures = replace(pictures, size=architecture.size)
    facts = settings.to_json() | {
        "model": architecture.name,
        "weights": fingerprint(vit),
        "data": shards.digest,
        "mean": pictures.mean,
        "std": pictures.std,
    }
    with exclusive(out) if out and ranks.is_main else nullcontext():
        ranks.wait()  # until the folder is there
        state = finetune_state.load(out, facts) if out else FinetuneState(facts)
        if state.result is None:
            made = begin(vit, len(shards.classes), settings, device, state, ranks, is_compiled)
            cores = max(1, usable_cores() // ranks.local_world) if workers is None else workers
            state.result = _run(made, shards, pictures, state, cores, out, show)
            _save(made, state, out)
        return state.result


def _run(
    made: Trainee,
    shards: ShardSet,
    pictures: Pictures,
    state: FinetuneState,
    workers: int,
    out: Path | None,
    show: bool,
) -> dict[str, Any]:
    """Train and count from `state` to the end, and return the result."""
    plan = _plan(shards, made.settings, state.step, made.ranks)
    arriving = batches(
        SplitPictures(shards, pictures, made.settings),
        plan,
        workers,
        pinned=made.device.type == "cuda",
    )
    with closing(arriving):
        _train(made, plan, arriving, state, out, show)
        return _result(made, plan, arriving, state) | {"classes": len(shards.classes)}


def _refuse(shards: ShardSet, settings: FinetuneSettings, ranks: Ranks) -> None:
    if "val" not in shards.splits:
        raise UserError(
            f"{shards.location} has no val split to count on.",
            "Write a set with a val folder, or fine-tune on another with --data.",
        )
    images = len(shards.split("train"))
    steps_per_epoch(images, settings)
    if settings.pieces % ranks.world:
        pieces = "1 piece" if settings.pieces == 1 else f"{settings.pieces} pieces"
        fitting = _largest_shared_batch(images, settings, ranks.world)
        raise UserError(
            f"A batch of {settings.batch} is worked on in {pieces} of {settings.at_once}, which "
            f"{ranks.world} ranks cannot share evenly.",
            f"Use --batch {fitting}."
            if fitting
            else f"Start it without torchrun: {images} training pictures are too few for "
            f"{ranks.world} ranks.",
        )


def _largest_shared_batch(images: int, settings: FinetuneSettings, world: int) -> int:
    """Return the largest batch that all ranks can share evenly, with at most one piece each; 0
    if there is none."""
    most = min(images, world * settings.most_at_once)
    return max(
        (b for b in range(2, most + 1, 2) if replace(settings, batch=b).pieces % world == 0),
        default=0,
    )


def _plan(shards: ShardSet, settings: FinetuneSettings, first: int, ranks: Ranks) -> FinetunePlan:
    return FinetunePlan(
        settings,
        len(shards.split("train")),
        len(shards.split("val")),
        first,
        last_counts=1 if settings.ema_decay else 0,
        rank=ranks.rank,
        world=ranks.world,
    )


def _train(
    made: Trainee,
    plan: FinetunePlan,
    arriving: Iterator[Batch],
    state: FinetuneState,
    out: Path | None,
    show: bool,
) -> None:
    """Train and count until the last epoch has ended. On a signal, save and raise SystemExit."""
    votes = Votes(made.ranks)
    pending: Tensor | None = None
    console = Console(stderr=True)
    hidden = not show or not made.ranks.is_main
    with interruption() as interrupted, Progress(console=console, disable=hidden) as progress:
        bar = progress.add_task("fine-tuning", total=plan.last, completed=state.step)
        tick = time.perf_counter()
        while True:
            if len(state.history) < state.step // plan.steps:
                _read(state, pending)
                pending = None
                state.history.append(_epoch(made, plan, arriving, state))
                state.loss_sum = 0.0
                tick = _advance(state, tick)
                progress.update(bar, description=_line(plan, state))
                _save(made, state, out)
            if state.step == plan.last:
                break
            if stopped_by := votes.cast(interrupted.signal):
                votes.close()
                _read(state, pending)
                _save(made, state, out)
                if out and made.ranks.is_main:
                    console.print("Stopped; the same command goes on from here.")
                raise SystemExit(128 + stopped_by)
            epoch, batch = divmod(state.step, plan.steps)
            made.rate.set(epoch, batch / plan.steps)
            loss = train_step(made, state.step, arriving)
            # The previous step has ended: reading its loss does not wait.
            _read(state, pending)
            pending = loss
            state.step += 1
            tick = _advance(state, tick)
            progress.update(bar, completed=state.step, description=_line(plan, state))
        votes.close()


def _read(state: FinetuneState, pending: Tensor | None) -> None:
    """Add the loss of the last unread step. Raise UserError if the loss is not finite."""
    if pending is None:
        return
    loss = float(pending)
    if not math.isfinite(loss):
        raise UserError(
            f"The loss of fine-tuning became {loss} near step {state.step}.",
            "Use a lower --lr.",
        )
    state.loss_sum += loss


def _epoch(
    made: Trainee, plan: FinetunePlan, arriving: Iterator[Batch], state: FinetuneState
) -> dict[str, Any]:
    """Count the epoch that has just ended and return its line of history."""
    epoch = len(state.history) + 1
    right1, right5 = _count(made, made.network, plan, arriving, epoch)
    return {
        "epoch": epoch,
        "loss": state.loss_sum / plan.steps,
        "lr": made.rate.value,
        "top1": 100 * right1 / plan.counted_on,
        "top5": 100 * right5 / plan.counted_on,
        "right1": right1,
        "right5": right5,
    }


def _result(
    made: Trainee, plan: FinetunePlan, arriving: Iterator[Batch], state: FinetuneState
) -> dict[str, Any]:
    settings, last = made.settings, state.history[-1]
    best = max(state.history, key=lambda line: line["right1"])
    result = {name: last[name] for name in ("top1", "top5", "right1", "right5")}
    result |= {"images": plan.counted_on, "best_top1": best["top1"], "best_epoch": best["epoch"]}
    if made.ema:
        right1, _ = _count(made, made.ema.module, plan, arriving, last["epoch"])
        result["ema_top1"] = 100 * right1 / plan.counted_on
    return result | {
        "preset": settings.preset,
        "epochs": settings.epochs,
        "batch": settings.batch,
        "peak_lr": settings.peak_lr,
        "trained_on": plan.trained_on,
        "seconds": state.elapsed_s,
        "history": state.history,
    }


def _count(
    made: Trainee, network: nn.Module, plan: FinetunePlan, arriving: Iterator[Batch], epoch: int
) -> tuple[int, int]:
    return count_right(made, network, arriving, len(plan.counting()), epoch)


def _save(made: Trainee, state: FinetuneState, out: Path | None) -> None:
    if out and made.ranks.is_main:
        made.note(state)
        finetune_state.save(out, state)


def _advance(state: FinetuneState, tick: float) -> float:
    now = time.perf_counter()
    state.elapsed_s += now - tick
    return now


def _line(plan: FinetunePlan, state: FinetuneState) -> str:
    text = f"fine-tuning, epoch {(state.step - 1) // plan.steps + 1} of {plan.settings.epochs}"
    if not state.history:
        return text
    # Val is counted at the end of an epoch: during an epoch this is the previous one's.
    last = state.history[-1]
    return f"{text}  top1 {last['top1']:.1f}% after epoch {last['epoch']}"
