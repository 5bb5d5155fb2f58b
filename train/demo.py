"""The command `accelssl demo`: a whole run on real photographs, in minutes on two CPU cores."""

from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.shards.write.demo_photographs import write_demo_pictures
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.budget import parse_units
from accelssl.train.config.config import TrainConfig, override
from accelssl.train.config.config_file import read_config
from accelssl.train.config.named_recipes import find
from accelssl.train.device import pick_device
from accelssl.train.evaluate.command import evaluate_run
from accelssl.train.evaluate.results import NEAREST, own_result, read_results
from accelssl.train.evaluate.tables import score_table
from accelssl.train.log.progress import Terminal
from accelssl.train.precision import pick_precision
from accelssl.train.report.report import write_report
from accelssl.train.run import run_training
from accelssl.train.session import CONFIG


def run_demo(out: Path, budget: str, device_name: str) -> int:
    """Write pictures, shards, a trained run, its evaluation and its report to `out`.

    Skip the steps that are complete. Return the signal that stopped the training, 0 for none. Raise
    UserError if `out` holds other files, or a demo with another budget.
    """
    units, device = parse_units(budget), pick_device(device_name)
    console = Terminal()
    shards, run = out / "shards", out / "run"
    if not (shards / "manifest.json").exists():
        _write_shards(out, console)
    config = find("simclr_demo").make(
        str(shards), budget=units, precision=pick_precision("auto", device)
    )
    known = (run / CONFIG).exists()
    if known:
        config = _same(read_config(run / CONFIG), config, out)
    stopped_by = run_training(config, run, device, resuming=known, baseline=True)
    if not stopped_by:
        print(score_table(_scores(run, device)))
        print(f"\nOpen {write_report(run).resolve()} in a browser.")
    return stopped_by


def _write_shards(out: Path, console: Terminal) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} holds an unfinished demo or other files.",
            "Remove it, or name another folder with --out.",
        )
    write_demo_pictures(out / "pictures")
    console.print(str(shard_images(out / "pictures", out / "shards")))


def _same(stored: TrainConfig, config: TrainConfig, out: Path) -> TrainConfig:
    machine = {"precision": stored.precision, "data": stored.data, "threads": stored.threads}
    if override(config, machine) != stored:
        raise UserError(
            f"{out} holds a demo with other settings (--budget {stored.budget:g}).",
            "Remove it, or name another folder with --out.",
        )
    return override(stored, {"data": config.data})


def _scores(run: Path, device: torch.device) -> dict[str, Any]:
    """Return the evaluation of the last checkpoint. Evaluate only if no result is stored."""
    scores = own_result(read_results(run), NEAREST)
    if scores and scores["step"] == checkpoint.load(run, at_a_glance=True).step:
        return scores
    return evaluate_run(run, None, device)
