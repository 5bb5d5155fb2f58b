"""The command `accelssl analyze-gradients`: from options to a file."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

import torch
from rich.progress import Progress

from accelssl.errors import UserError
from accelssl.formats import duration
from accelssl.pipeline.compression import UNCOMPRESSED, Compression, sizes_near
from accelssl.pipeline.loader import Loader
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.train.config.auto import compared_by
from accelssl.train.config.budget import as_option, format_units, parse_units
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.number_lists import read_numbers
from accelssl.train.config.schedule import Stage
from accelssl.train.device import pick_device
from accelssl.train.gradients.analysis import AnalysisPlan, cells_that_fit, sums_of
from accelssl.train.gradients.checkpoints import Kept, digest_of, kept_at, objective_at
from accelssl.train.gradients.estimator import ESTIMATORS, FEWEST
from accelssl.train.gradients.gradient import SCOPES, Gradient
from accelssl.train.gradients.grid import (
    SHARES,
    Item,
    analysis_units,
    cost_of,
    grid_of,
    items_of,
    step_units,
)
from accelssl.train.gradients.record import (
    FORMAT,
    CellFolder,
    Facts,
    measured_json,
    read_record,
    refuse_other_facts,
)
from accelssl.train.log.progress import Terminal
from accelssl.train.precision import pick_precision
from accelssl.train.ranks.distributed import Ranks, device_of, read_ranks
from accelssl.train.session import CONFIG, loader_options, run_views

NEGATIVES = ("subbatch", "bank")


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of an analysis. checkpoints, sides and drops are lists as text; None takes the
    default.

    step_units: cost of the step that variances are adjusted to; None is the run's uncompressed
    step. seed: of images, crops and drops; None is the run's plus one. precision: None is the
    run's.
    """

    checkpoints: str | None = None
    sides: str | None = None
    drops: str | None = None
    samples: int = 16_384
    subbatch: int = 64
    estimator: str = "paired"
    negatives: str = "subbatch"
    scope: str = "all"
    step_units: str | None = None
    seed: int | None = None
    precision: str | None = None
    cells_at_once: int | None = None


@dataclass(frozen=True)
class _Analysis:
    """Everything that is the same for every cell. trained: the run's configuration; config: the
    same with precision and seed of the analysis."""

    run: Path
    trained: TrainConfig
    config: TrainConfig
    shards: ShardSet
    device: torch.device
    options: AnalysisOptions
    cells: tuple[Compression, ...]
    plan: AnalysisPlan
    step_units: float

    def views_of(self, cell: Compression) -> tuple[Compression, ...]:
        return self.config.compressions(Stage(1.0, cell))

    def loader(self) -> Loader:
        """Return a loader from the first image on, so that every block of cells sees the same
        images."""
        options = loader_options(self.config, self.device)
        options = replace(options, batch=self.options.subbatch)
        return Loader(self.shards.split("train"), run_views(self.config), options)


def analyze_gradients(
    run: Path, data: str | None, out: Path, options: AnalysisOptions, device: str
) -> str | None:
    """Analyse a run into `out`; continue where the same command stopped before.

    Under torchrun each rank computes a part of the cells; the last to finish writes `out`. Return
    the text to print, or None on the other ranks.
    """
    ranks = read_ranks()
    analysis = _prepared(run, data, options, device_of(ranks, pick_device(device)))
    shares = SHARES
    if options.checkpoints:
        shares = read_numbers("--checkpoints", options.checkpoints, float)
    kept = kept_at(run, analysis.trained, shares)
    facts = _facts(analysis, kept)
    parts = CellFolder(out, facts)
    todo = [item for item in _mine(analysis, shares, ranks) if not parts.is_done(item)]
    if out.exists():  # checked last: finished cells move from the folder to this file
        refuse_other_facts(out, read_record(out).facts, facts)
        return f"{out} is finished, nothing is left to do."
    parts.prepare()
    started = time.perf_counter()
    with _progress(len(todo) * analysis.plan.subbatches, ranks.is_main) as advance:
        for share, items in groupby(todo, key=lambda item: item.share):
            at = next(each for each in kept if each.share == share)
            _stage(analysis, at, [item.cell for item in items], parts, advance)
    if not parts.assemble(shares, analysis.cells):
        return None
    took = duration(time.perf_counter() - started)
    cost = format_units(facts["units"])
    return f"{out}: {cost} units, {took}\n{_next(out, analysis.trained.budget)}"


def _next(out: Path, budget: float) -> str:
    """Return the next commands to run; schedule gets the budget of the analysed run."""
    plot = shlex.join(["accelssl", "plot", str(out)])
    schedule = shlex.join(["accelssl", "schedule", str(out), "--budget", as_option(budget)])
    return f"next: {plot}\n      {schedule}"


def _prepared(
    run: Path, data: str | None, options: AnalysisOptions, device: torch.device
) -> _Analysis:
    config = read_config(run / CONFIG)
    _refuse(options, config)
    sides = read_numbers("--patches", options.sides, int) if options.sides else ()
    drops = read_numbers("--drops", options.drops, float) if options.drops else ()
    cells = grid_of(config, sides, drops)
    bank = -(-config.batch // options.subbatch) - 1 if options.negatives == "bank" else 0
    seed = (config.seed + 1) % 2**32 if options.seed is None else options.seed
    shards = open_shards(data or config.data)
    if (images := len(shards.split("train"))) < options.subbatch:
        raise UserError(
            f"{shards.location} has {images} training images, no sub-batch of {options.subbatch}.",
            f"Use --subbatch {max(2, images // FEWEST)}.",
        )
    precision = config.precision
    if options.precision is not None:
        precision = pick_precision(options.precision, device)
    return _Analysis(
        run,
        config,
        replace(config, seed=seed, precision=precision),
        shards,
        device,
        options,
        cells,
        AnalysisPlan(options.samples // options.subbatch, bank),
        parse_units(options.step_units) if options.step_units else step_units(config),
    )


def _refuse(options: AnalysisOptions, config: TrainConfig) -> None:
    if config.size % UNCOMPRESSED.p:
        raise UserError(
            f"The run's crops of {config.size} px cannot be cut into {UNCOMPRESSED.p} px patches"
            f"{compared_by('analyze-gradients')}: this run cannot be analysed.",
            f"Train one with --size {sizes_near(config.size, [UNCOMPRESSED.p])}, or 240, which "
            "every patch side divides.",
        )
    for option, value, known in (
        ("--estimator", options.estimator, ESTIMATORS),
        ("--negatives", options.negatives, NEGATIVES),
        ("--scope", options.scope, SCOPES),
    ):
        if value not in known:
            raise UserError(f"{option} {value} is not known.", f"Use {' or '.join(known)}.")
    if options.subbatch < 2:
        raise UserError(f"--subbatch {options.subbatch} has no pairs.", "Use 2 or more, best 64.")
    if options.samples < FEWEST * options.subbatch:
        raise UserError(
            f"--samples {options.samples} are fewer than {FEWEST} sub-batches of "
            f"{options.subbatch}.",
            "Use more samples, best 16384, or a smaller --subbatch.",
        )
    if options.cells_at_once is not None and options.cells_at_once < 1:
        raise UserError(f"--cells-at-once {options.cells_at_once} is none.", "Use 1 or more.")
    if options.negatives == "bank" and not config.method.has_negatives:
        raise UserError(
            f"{config.method.title} has no negatives for a bank.", "Leave --negatives out."
        )
    if options.negatives == "bank" and options.subbatch >= config.batch:
        raise UserError(
            f"Sub-batches of {options.subbatch} have the {config.batch} images of the run's batch "
            "already.",
            "Leave --negatives out, or use a smaller --subbatch.",
        )


def _facts(analysis: _Analysis, kept: Sequence[Kept]) -> Facts:
    """Return everything that the figures depend on. An analysis continues only with equal facts."""
    config, options = analysis.config, analysis.options
    images = analysis.plan.subbatches * options.subbatch
    of_config = ("algo", "mode", "symmetric", "n_local", "model", "size", "batch", "convention")
    return {
        "format": FORMAT,
        "run": str(analysis.run),
        **{name: getattr(config, name) for name in of_config},
        "data": analysis.shards.location,
        "data_digest": analysis.shards.digest,
        "budget": analysis.trained.budget,
        "checkpoints": [asdict(each) for each in kept],
        "grid": [str(cell) for cell in analysis.cells],
        "samples": images,
        "subbatch": options.subbatch,
        "estimator": options.estimator,
        "negatives": options.negatives,
        "negatives_from_bank": analysis.plan.bank_batches * options.subbatch,
        "scope": options.scope,
        "step_units": analysis.step_units,
        "units": len(kept) * analysis_units(config, analysis.cells, images),
        "seed": config.seed,
        "precision": config.precision,
    }


def _mine(analysis: _Analysis, shares: Sequence[float], ranks: Ranks) -> list[Item]:
    costs = [cost_of(analysis.config, cell) for cell in analysis.cells]
    return items_of(shares, analysis.cells, costs, ranks.rank, ranks.world)


def _stage(
    analysis: _Analysis,
    kept: Kept,
    cells: list[Compression],
    parts: CellFolder,
    advance: Callable[[], None],
) -> None:
    """Compute these cells at one share of the budget."""
    config, options = analysis.config, analysis.options
    objective = objective_at(analysis.run, analysis.trained, kept)
    stage = asdict(kept) | {"weights": digest_of(objective)}
    scope = next(known for known in SCOPES if known == options.scope)
    estimator = next(known for known in ESTIMATORS if known == options.estimator)
    gradient = Gradient(objective.to(analysis.device), kept.progress, config.precision, scope)
    at_once = options.cells_at_once or cells_that_fit(gradient)
    for block in (cells[i : i + at_once] for i in range(0, len(cells), at_once)):
        with closing(analysis.loader()) as loader:
            views = [analysis.views_of(cell) for cell in block]
            baseline = analysis.views_of(UNCOMPRESSED)
            found = sums_of(gradient, loader, baseline, views, analysis.plan, advance)
        for cell, sums in zip(block, found, strict=True):
            found_json = measured_json(
                config, cell, sums, options.subbatch, analysis.step_units, estimator
            )
            parts.write(Item(kept.share, cell), stage, found_json)
        if not (console := Terminal()).is_terminal:
            console.print(f"{kept.share:.0%} of the budget: {', '.join(map(str, block))}")


@contextmanager
def _progress(gradients: int, shown: bool) -> Iterator[Callable[[], None]]:
    console = Terminal()
    with Progress(console=console, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("gradients", total=gradients)
        yield lambda: bar.advance(task)
