"""The first run anywhere: real photographs through the whole way, in minutes on two cores."""

from pathlib import Path

from rich.console import Console

from accelssl.errors import UserError
from accelssl.pipeline.compress.compression import Compression
from accelssl.pipeline.demo import write_demo_pictures
from accelssl.pipeline.imagenet import shard_images
from accelssl.train.budget import parse_units
from accelssl.train.command import evaluate_command, pick_device, run_training
from accelssl.train.recipes import demo
from accelssl.train.schedule import Schedule, Stage

SCHEDULE = Schedule((Stage(0.75, Compression(30, 0.5)), Stage(1.0, Compression(24, 0.5))))


def run_demo(out: Path, budget: str, device_name: str) -> None:
    """Pictures, shards, training, evaluation and report in `out`, which must be new or empty."""
    units, device = parse_units(budget), pick_device(device_name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} already holds a demo or other files.",
            "Remove it, or name another folder with --out.",
        )
    console = Console(stderr=True)
    write_demo_pictures(out / "pictures")
    report = shard_images(out / "pictures", out / "shards")
    console.print(str(report))
    config = demo(str(out / "shards"), units, SCHEDULE)
    run_training(config, out / "run", device, resuming=False, baseline=True)
    print(evaluate_command(out / "run", None, "nn", str(device), as_json=False))
    print(f"\nOpen {(out / 'run' / 'report.html').resolve()} in a browser.")
