"""An estimate within a run on a GPU: kernels of our own, launched one by one, then replayed."""

from pathlib import Path

import pytest
import torch

from accelssl.model import add_norm, gelu, short_attention
from accelssl.train.auto import BEFORE, Auto
from accelssl.train.gradients.in_run import decide
from accelssl.train.session import start
from tests.train.any_run import config_on

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def test_kernels_of_our_own_change_an_estimate_by_no_more_than_rounding(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 73 tokens too, and with Triton's own ptxas: torch.compile sets another once it ran."""
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    config = config_on(
        shard_dir,
        model="vit_tiny_patch16_224",  # its heads are 64 wide
        precision="bf16",
        budget=4000.0,
        schedule=BEFORE,
        auto=Auto(1.0, (0.0,)),
    )
    session = start(config, tmp_path / "run", CUDA)
    ours = decide(session, 0.0)
    assert 73 in {1 + cell.cell.keep(config.size) for cell in ours.stage.cells}
    for switch in (short_attention.SWITCH, gelu.SWITCH, add_norm.SWITCH):
        monkeypatch.setenv(switch, "0")
    torchs = decide(session, 0.0)
    for one, other in zip(ours.stage_json["cells"], torchs.stage_json["cells"], strict=True):
        assert one["variance"][0] == pytest.approx(other["variance"][0], rel=0.1)
