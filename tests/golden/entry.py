"""The only imports of accelssl in the golden tests. Only this file may follow a moved module."""

import gzip
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.models import register_model
from torch import nn

from accelssl import cli
from accelssl.pipeline.compress.op import augment_patchify
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.draws import Draws
from accelssl.pipeline.draws.order import Plan, Position, epoch_order
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Stage, read_schedule
from accelssl.train.report.history import read_history
from accelssl.train.session import run_views

__all__ = ["Compression", "Stage", "read_config", "read_history", "read_schedule"]

DATA = Path(__file__).parent / "data"
SHARDS = DATA / "shards"
METHODS = ("simclr", "moco", "dino")
CHANGED = (
    "{} changed. The files in tests/golden/data are those that users have: mend the code, "
    "do not make the files anew to pass this test."
)
SEED, SAMPLES, EPOCHS = 7, (3, 11), (0, 2)
"""The two samples and two epochs whose draws are pinned."""
MANY = 32
"""Samples whose augmentations are pinned too, so that rare ones are among them."""
SIZES_N2 = [[375, 500], [90, 411]]
COMPRESSIONS = ((16, 0.5), (30, 0.5), (48, 0.9))
PARAMS = (
    (-1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (17.0, 1.39, 0.9, 0.83, -0.09, 0.0, 1.65, 1.0, 0.0),
    (3.0, 0.97, 1.39, 1.06, 0.05, 1.0, 1.48, 1.0, 1.0),
)
"""Nothing; jitter, blur and solarize; all of them, gray and flip. Their order shows in the tokens.

Columns: order of jitters, brightness, contrast, saturation, hue, gray, sigma, solarize, flip.
"""


@register_model
def golden_vit_4(pretrained: bool = False, **options: Any) -> nn.Module:
    """Build one block 4 wide: small enough to commit checkpoints."""
    sizes: dict[str, Any] = {"depth": 1, "embed_dim": 4, "num_heads": 1, "mlp_ratio": 1}
    network: nn.Module = timm.create_model("test_vit", img_size=224, **sizes, **options)
    return network


@register_model
def golden_vit_32(pretrained: bool = False, **options: Any) -> nn.Module:
    """Build two blocks 32 wide, for the ten losses."""
    sizes: dict[str, Any] = {"depth": 2, "embed_dim": 32}
    network: nn.Module = timm.create_model("test_vit", img_size=224, **sizes, **options)
    return network


def accelssl(*words: object) -> int:
    """Run a command of the command line and return its exit code."""
    argv, sys.argv = sys.argv, ["accelssl", *map(str, words)]
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code
        return code if isinstance(code, int) else int(code is not None)
    finally:
        sys.argv = argv
    return 0


def copy_run(method: str, folder: Path) -> Path:
    """Copy the committed run of a method to folder/run, and the shards beside it."""
    run = folder / "run"
    shutil.copytree(DATA / "runs" / method, run)
    shutil.copytree(SHARDS, folder / "shards")
    packed = run / "checkpoint.pt.gz"
    (run / "checkpoint.pt").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return run


def drawn_of_all() -> dict[str, NDArray[Any]]:
    """Return everything drawn for the views of each method, and the orders of epochs, by name."""
    found: dict[str, NDArray[Any]] = {}
    found |= {f"order/{epoch}": epoch_order(101, SEED, epoch) for epoch in EPOCHS}
    for method in METHODS:
        found |= {f"{method}/{name}": values for name, values in _drawn(method).items()}
    return found


def _drawn(method: str) -> dict[str, NDArray[Any]]:
    config = read_config(DATA / "runs" / method / "config.json")
    views = run_views(replace(config, size=240, budget=1e6))
    draws = Draws(views, SEED)
    found: dict[str, NDArray[Any]] = {}
    for epoch in EPOCHS:
        plan = Plan(np.array(SAMPLES), epoch, Position())
        for place, windows in enumerate(draws.windows(plan, np.array(SIZES_N2))):
            found[f"windows/{epoch}/{place}"] = windows
            found[f"params/{epoch}/{place}"] = draws.params(plan, place)
            for p, drop in COMPRESSIONS if views[place].size == 240 else ((16, 0.0),):
                kept = draws.keep_idx(plan, place, Compression(p, drop))
                found[f"keep_idx/{epoch}/{place}/p{p}"] = kept
    many = Plan(np.arange(MANY), 0, Position())
    for place in range(len(views)):
        found[f"params_of_many/{place}"] = draws.params(many, place)
    return found


def tokens() -> dict[str, NDArray[Any]]:
    """Return tokens of one picture, by p: what the fused op makes on the CPU with each of PARAMS.

    Every thirteenth value of a token is enough, and keeps the file small.
    """
    with Image.open(DATA / "png/train/apple/0.png") as image:
        pixels = np.asarray(image.convert("RGB").resize((240, 240), Image.Resampling.NEAREST))
    params_NP = torch.tensor(PARAMS)
    crops_NHWC = torch.from_numpy(pixels.copy()).repeat(len(params_NP), 1, 1, 1)
    found: dict[str, NDArray[Any]] = {}
    for p in (16, 30, 48):
        patches = (240 // p) ** 2
        keep_idx_NL = torch.arange(1, patches, patches // 6).repeat(len(params_NP), 1)
        values_NLV = augment_patchify(crops_NHWC, params_NP, keep_idx_NL, p)
        found[f"p{p}"] = values_NLV[:, :, ::13].numpy()
    return found
