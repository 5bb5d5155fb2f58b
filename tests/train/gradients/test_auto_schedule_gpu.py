"""An estimate within a run on a GPU: kernels of our own, launched one by one, then replayed."""

from math import log
from pathlib import Path

import pytest
import torch

from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.switches import KERNELS, TORCH
from accelssl.train.config.auto import BEFORE, Auto
from accelssl.train.gradients import sample_size
from accelssl.train.gradients.auto_schedule import decide
from accelssl.train.session import start
from tests.train.any_run import config_on

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
# 57, 73, 33 and 26 tokens beside 226.
CELLS = (
    UNCOMPRESSED,
    *(Compression(p, drop) for p, drop in ((16, 0.75), (20, 0.5), (30, 0.5), (48, 0.0))),
)


def variances(shard_dir: Path, run: Path, precision: str) -> list[float]:
    """Of images' gradients in each of CELLS.

    Sub-batches and heads are large enough for rounding to matter little: in batch norm over eight
    features that are nearly the same it is all there is.
    """
    config = config_on(
        shard_dir,
        model="vit_tiny_patch16_224",  # its heads are 64 wide
        precision=precision,
        batch=16,
        head_hidden=64,
        head_out=64,
        budget=4000.0,
        schedule=BEFORE,
        auto=Auto(1.0, (0.0,)),
    )
    cells = decide(start(config, run, CUDA), 0.0).stage_json["cells"]
    return [cell["variance"][0] for cell in cells]


def test_kernels_of_our_own_err_in_an_estimate_no_more_than_torchs_do(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 73 tokens too, and with Triton's own ptxas: torch.compile sets another once it ran."""
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setattr(sample_size, "_grids", lambda config: [CELLS])
    ours = variances(shard_dir, tmp_path / "ours", "bf16")
    monkeypatch.setenv(KERNELS, TORCH)
    torchs = variances(shard_dir, tmp_path / "torchs", "bf16")
    right = variances(shard_dir, tmp_path / "right", "fp32")
    assert len(ours) == len(CELLS)
    worst = max(abs(log(x / true)) for x, true in zip(torchs, right, strict=True))
    for one, true in zip(ours, right, strict=True):
        assert abs(log(one / true)) <= 2 * worst + 0.05
