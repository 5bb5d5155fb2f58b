"""One budget spent in several ways: what compression buys in accuracy, and in seconds.

    python -m accelssl.benchmarks.studies.same_budget SHARDS OUT --budget 1M

trains SimCLR three times on the same shard set (p16 d0, p30 d0, p30 d0.5), each time for the same
budget, evaluates nearest neighbours, and appends a line to OUT/same_budget.jsonl after each run. A
way that already has its line is not run again, so an interrupted call continues.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from accelssl.pipeline.compression import Compression
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.budget import format_units, parse_units
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.named_recipes import find
from accelssl.train.config.schedule import constant
from accelssl.train.device import pick_device
from accelssl.train.evaluate.command import evaluate_run
from accelssl.train.log.environment import environment
from accelssl.train.run import run_training
from accelssl.train.session import CONFIG

WAYS = (Compression(16, 0.0), Compression(30, 0.0), Compression(30, 0.5))
NAME = "same_budget.jsonl"


def measure(config: TrainConfig, run: Path, device: torch.device) -> dict[str, Any]:
    """Train `config` in `run` (or go on with it) and evaluate: one line of the result."""
    known = (run / CONFIG).exists()
    stopped_by = run_training(config, run, device, resuming=known, baseline=True)
    if stopped_by:
        raise typer.Exit(128 + stopped_by)
    state, stage = checkpoint.load(run), config.schedule.stages[0]
    scores = evaluate_run(run, None, device)
    return {
        "compression": str(stage.compression),
        "sample_cost": config.sample_cost(stage),
        "images": state.images,
        "seconds": state.elapsed_s,
        "images_per_s": state.images / state.elapsed_s,
        **{name: scores[name] for name in ("trained", "untrained", "pixels")},
        "budget": config.budget,
        "model": config.model,
        "batch": config.batch,
        "seed": config.seed,
    }


def main(
    shards: Path,
    out: Path,
    budget: str = "1M",
    model: str = "vit_tiny_patch16_224",
    batch: int = 512,
    lr: Annotated[float, typer.Option(help="For 256 images.")] = 5e-4,
    seeds: int = 1,
    precision: str = "bf16",
    threads: int = 16,
    device: str = "auto",
) -> None:
    """Spend one budget in three ways and print what each reached."""
    out.mkdir(parents=True, exist_ok=True)
    place = pick_device(device)
    done = {(line["compression"], line["seed"]): line for line in _lines(out)}
    options: dict[str, Any] = {
        "batch": batch,
        "base_lr": lr,
        "precision": precision,
        "threads": threads,
    }
    for seed in range(seeds):
        for way in WAYS:
            if (str(way), seed) in done:
                continue
            units = parse_units(budget)
            config = find("simclr_small").make(
                str(shards), model=model, budget=units, schedule=constant(way), seed=seed, **options
            )
            run = out / f"p{way.p}_d{way.drop:g}_seed{seed}"
            line = measure(config, run, place)
            with (out / NAME).open("a") as results:
                results.write(json.dumps(line) + "\n")
    print(table(_lines(out), environment(place)))


def _lines(out: Path) -> list[dict[str, Any]]:
    path = out / NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(lines: Sequence[dict[str, Any]], where: dict[str, Any]) -> str:
    """The result as Markdown, with hardware, versions and command."""
    first = lines[0]
    rows = [
        f"SimCLR, {first['model']}, batch {first['batch']}, budget {format_units(first['budget'])}",
        f"units. Untrained nn1 {first['untrained']['nn1']:.1f}, knn20 "
        f"{first['untrained']['knn20']:.1f}; pixels {first['pixels']['nn1']:.1f}, "
        f"{first['pixels']['knn20']:.1f}.",
        "",
        "| compression | seed | units an image | images seen | nn1 | knn20 | seconds | images/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {r['compression']} | {r['seed']} | {r['sample_cost']:.3f} | {r['images']:,} | "
        f"{r['trained']['nn1']:.1f} | {r['trained']['knn20']:.1f} | {r['seconds']:.0f} | "
        f"{r['images_per_s']:,.0f} |"
        for r in lines
    ]
    return "\n".join([*rows, "", *(f"- {name}: {value}" for name, value in where.items())])


if __name__ == "__main__":
    typer.run(main)
