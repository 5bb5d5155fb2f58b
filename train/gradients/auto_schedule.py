"""Decisions of a run with --schedule auto, from its own gradients.

A copy of the network is measured, on images and crops of another seed. Weights, optimiser, EMA
encoder, loader and torch's generators of the run stay unchanged.
"""

import gc
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from accelssl.model.gather import alone
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.pipeline.draws.order import Position, batches_per_epoch
from accelssl.pipeline.loader import Loader
from accelssl.train.config.schedule import Stage
from accelssl.train.gradients.analysis import AnalysisPlan, RankPart, cells_that_fit, sums_of
from accelssl.train.gradients.checkpoints import digest_of
from accelssl.train.gradients.choose import chosen_now
from accelssl.train.gradients.decision import Decision
from accelssl.train.gradients.gradient import Gradient
from accelssl.train.gradients.grid import analysis_units, step_units
from accelssl.train.gradients.record import measured_json, stage_of
from accelssl.train.gradients.sample_size import Size, affordable
from accelssl.train.objective import build
from accelssl.train.ranks.distributed import Ranks
from accelssl.train.session import Session, loader_options, run_views


class Abandoned(Exception):
    """The run must stop. The estimate is made again after a resume."""


def decide(
    session: Session, share: float, is_to_stop: Callable[[], bool] = lambda: False
) -> Decision:
    """Choose the compression from `share` of the budget on, the same on every rank.

    Ranks share the work. Raise UserError if a gradient is not finite. Raise Abandoned soon after
    is_to_stop() returns true, unless other ranks wait for this one.
    """
    started = time.perf_counter()
    size = affordable(session.config)
    _give_back_memory(session.device)

    def advance() -> None:
        if session.ranks.world == 1 and is_to_stop():
            raise Abandoned

    found, units = _measured(session, share, size, advance)
    _give_back_memory(session.device)
    stage, current = stage_of(found), session.decisions[-1].cell if session.decisions else None
    decision = Decision(
        stage,
        found,
        chosen_now(stage, current).cell,
        current,
        session.step,
        session.budget.progress,
        size.subbatch,
        size.subbatches,
        units,
        time.perf_counter() - started,
    )
    return session.ranks.from_main(decision)


def _measured(
    session: Session, share: float, size: Size, advance: Callable[[], None]
) -> tuple[dict[str, Any], float]:
    """Return the figures of all cells, as a stage of camse.json, and their cost in units."""
    config, ranks, device = session.config, session.ranks, session.device
    copied = build(config)
    copied.load_state_dict(session.objective.state_dict())
    weights = digest_of(copied)
    gradient = Gradient(copied.to(device), session.budget.progress, config.precision)
    plan, part = AnalysisPlan(size.subbatches), RankPart(ranks, device)
    baseline = config.compressions(Stage(1.0, UNCOMPRESSED))
    at_once, cells, units = _least(cells_that_fit(gradient), ranks), [], 0.0
    for start in range(0, len(size.cells), at_once):
        block = size.cells[start : start + at_once]
        views = [config.compressions(Stage(1.0, cell)) for cell in block]
        with alone(), closing(_loader(session, share, size, part, plan)) as loader:
            found = sums_of(gradient, loader, baseline, views, plan, advance, part)
        units += analysis_units(config, block, size.samples)
        for cell, sums in zip(block, found, strict=True):
            found_json = measured_json(config, cell, sums, size.subbatch, step_units(config))
            cells.append(found_json)
    norm2 = [cell.pop("norm2") for cell in cells]
    return {"share": share, "weights": weights, "norm2": norm2[0], "cells": cells}, units


def _give_back_memory(device: torch.device) -> None:
    """Release torch's cached memory for the sums, and later for the decoder."""
    if device.type == "cuda":
        gc.collect()  # gradients and the graphs that compute them refer to each other
        torch.cuda.empty_cache()


def _loader(
    session: Session, share: float, size: Size, part: RankPart, plan: AnalysisPlan
) -> Loader:
    """Return a loader at this rank's sub-batches. Each decision takes the images after the last
    one's."""
    config, split = session.config, session.shards.split("train")
    options = loader_options(config, session.device)
    seed = (config.seed + 1) % 2**32
    points = config.auto.at if config.auto else ()
    mine = [0, *plan.ends][part.groups(len(plan.ends)).start]
    first = points.index(share) * size.subbatches + mine
    whole = batches_per_epoch(len(split), size.subbatch, 1)
    return Loader(
        split,
        run_views(config),
        replace(options, batch=size.subbatch, seed=seed),
        Position(*divmod(first, whole)),
    )


def _least(cells: int, ranks: Ranks) -> int:
    """Return the smallest value over ranks: all ranks add up the same cells."""
    if ranks.hosts is None:
        return cells
    least = torch.tensor(cells)
    dist.all_reduce(least, dist.ReduceOp.MIN, group=ranks.hosts)
    return int(least)
