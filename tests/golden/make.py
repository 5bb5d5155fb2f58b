"""Make tests/golden/data. NEVER run this to pass a failing test.

The files stand for runs and shard sets that users have. They were made once, by the code before
the restructuring. Only a deliberate change of format, draws or numerics may replace them, in a
commit of its own that says so. Run from the top of the checkout: python -m tests.golden.make
"""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.golden import entry

SPLITS = {"train": 8, "val": 2}
LOSS_OPTIONS = (
    "--batch 8 --head-hidden 16 --model golden_vit_32 --threads 1 --device cpu --precision fp32"
)
OF_METHOD = {"simclr": "", "moco": "", "dino": "--local-crops 2 --prototypes 16"}
RATES = {"simclr": "--lr .005"} | dict.fromkeys(("moco", "dino"), "--lr .005 --momentum .9")
"""Large enough that the optimiser and the key encoder move the ten losses by far more than 1e-5."""
HEAD_OUT = 8


def make_pictures(folder: Path) -> None:
    """Write 2 classes of tiny JPEGs, and one PNG in a folder of its own."""
    rng = np.random.default_rng(25)
    for split, count in SPLITS.items():
        for c, name in enumerate(("apple", "pear")):
            place = folder / "pictures" / split / name
            place.mkdir(parents=True)
            for i in range(count):
                picture(rng, c).save(place / f"{i}.jpg", quality=40)
    place = folder / "png" / "train" / "apple"
    place.mkdir(parents=True)
    picture(rng, 0).resize((24, 20)).save(place / "0.png")


def picture(rng: np.random.Generator, hue: int) -> Image.Image:
    coarse = rng.integers(0, 200, (6, 7, 3)).astype(np.uint8)
    coarse[..., hue] += 50
    width, height = rng.integers(90, 130, 2).tolist()
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def call(*words: object) -> None:
    if code := entry.accelssl(*(part for word in words for part in str(word).split())):
        raise SystemExit(code)


def schedule_of(run: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """Return a budget of ten steps, the progress at the sixth, and p48 d0.5, then p16 d0.5."""
    config = entry.read_config(run / "config.json")
    stages = [{"p": 48, "drop": 0.5}, {"p": 16, "drop": 0.5}]
    first, second = (
        config.batch * config.sample_cost(entry.Stage(1.0, entry.Compression(s["p"], s["drop"])))  # type: ignore[arg-type]
        for s in stages
    )
    budget = round(5 * first + 4.5 * second, 2)
    ends = (round(4.5 * first / budget, 4), 1.0)
    sixth = round((5 * first + 0.5 * second) / budget, 3)
    return budget, sixth, [{"until": e} | s for e, s in zip(ends, stages, strict=True)]


def ten_losses(method: str) -> dict[str, Any]:
    settings = f"{LOSS_OPTIONS} {OF_METHOD[method]} {RATES[method]}"
    words = f"train --data shards --algo {method} {settings} --no-baseline"
    call(words, "--patch 48 --out probe", "--budget 40")
    budget, _, stages = schedule_of(Path("probe"))
    shutil.rmtree("probe")
    Path("stages.json").write_text(json.dumps(stages))
    options = f"{settings} --budget {budget}".split()
    call(words, f"--budget {budget} --schedule stages.json --out losses")
    steps = entry.read_history(Path("losses")).steps
    shutil.rmtree("losses")
    assert steps.p.tolist() == [48] * 5 + [16] * 5
    return {"options": options, "schedule": stages, "losses": steps.loss.tolist()}


def make_run(method: str) -> None:
    """Train in runs/METHOD from a config.json with relative paths and a small head."""
    small = LOSS_OPTIONS.replace("golden_vit_32", "golden_vit_4")
    words = f"train --data shards --algo {method} {small} {OF_METHOD[method]} --no-baseline"
    call(words, "--size 144 --patch 48 --drop .5 --budget 40 --out probe")
    budget, sixth, stages = schedule_of(Path("probe"))
    run = Path("runs") / method
    run.mkdir(parents=True)
    config = json.loads(Path("probe/config.json").read_text())
    config |= {"data": "shards", "budget": budget, "schedule": stages, "head_out": HEAD_OUT}
    (run / "config.json").write_text(json.dumps(config, indent=1))
    environment = json.loads(Path("probe/environment.json").read_text())
    environment |= {"cpu": "a processor", "command": "accelssl train"}
    (run / "environment.json").write_text(json.dumps(environment, indent=1))
    call("train --no-baseline --threads 1 --device cpu --resume --out", run, f"--keep-at {sixth},1")
    shutil.rmtree("probe")


def make_stopped(run: Path) -> None:
    """Leave the run as a kill after its sixth step would."""
    (kept,) = (file for file in run.glob("checkpoint-at-*.pt") if file.name != "checkpoint-at-1.pt")
    kept.replace(run / "checkpoint.pt")
    lines = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(lines[:6]))


def main() -> None:
    home = entry.DATA
    if home.exists() and any(home.iterdir()):
        raise SystemExit(f"{home} has the committed files. See the top of this script.")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_pictures(Path())
        call("shard-imagenet pictures shards --workers 1 --samples-per-shard 8")
        losses = {method: ten_losses(method) for method in entry.METHODS}
        Path("losses.json").write_text(json.dumps(losses, indent=1) + "\n")
        ends = {}
        for method in entry.METHODS:
            make_run(method)
            ends[method] = entry.read_history(Path("runs") / method).steps.loss.tolist()
        Path("run_losses.json").write_text(json.dumps(ends, indent=1) + "\n")
        call(
            "analyze-gradients runs/simclr --checkpoints 0,1 --patches 16,48 --drops 0,.5",
            "--samples 32 --subbatch 4 --device cpu",
        )
        call("schedule camse.json --budget 1M")
        shutil.copytree("runs/simclr", "finished")
        for method in entry.METHODS:
            make_stopped(Path("runs") / method)
        commit_to(home)


def commit_to(home: Path) -> None:
    home.mkdir(exist_ok=True)
    for name in ("losses.json", "run_losses.json", "camse.json", "schedule.json"):
        shutil.copy(name, home)
    for name in ("pictures", "png", "shards"):
        shutil.copytree(name, home / name)
    for run in (*(Path("runs") / method for method in entry.METHODS), Path("finished")):
        (home / run).mkdir(parents=True)
        for name in ("config.json", "log.jsonl", "environment.json"):
            shutil.copy(run / name, home / run)
    for method in entry.METHODS:
        packed = gzip.compress((Path("runs") / method / "checkpoint.pt").read_bytes(), mtime=0)
        (home / "runs" / method / "checkpoint.pt.gz").write_bytes(packed)
    sums = {
        str(file.relative_to(home / "shards")): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((home / "shards").iterdir())
    }
    (home / "shards.json").write_text(json.dumps(sums, indent=1) + "\n")
    arrays: dict[str, dict[str, Any]] = {
        "draws": dict(entry.drawn_of_all()),
        "tokens": dict(entry.tokens()),
    }
    for name, content in arrays.items():
        np.savez_compressed(home / f"{name}.npz", **content)


if __name__ == "__main__":
    main()
