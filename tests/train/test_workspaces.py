"""cuBLAS's workspaces: left out where that was measured to be quicker, and nowhere else."""

import os
import subprocess
import sys

import pytest
import torch

from accelssl.benchmarks.throughput import prepare_products
from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.compress.compression import UNCOMPRESSED
from accelssl.train import recipes
from accelssl.train.config import TrainConfig
from accelssl.train.schedule import constant
from accelssl.train.workspaces import VARIABLES, leave_out_workspaces

GPU = torch.device("cuda", 0)
BASE, SMALL = "vit_base_patch16_224", "vit_small_patch16_224"


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variable is set, and they are put back afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def are_left_out() -> bool:
    values = {name: os.environ.get(name) for name in VARIABLES}
    assert values in (VARIABLES, dict.fromkeys(VARIABLES))
    return values == VARIABLES


def objective(method: type[Objective], model: str) -> Objective:
    with torch.device("meta"):
        return method(model)  # type: ignore[call-arg]


def config(model: str) -> TrainConfig:
    return recipes.simclr(model, "", 1e6, constant(UNCOMPRESSED))


@pytest.mark.parametrize("method", [SimCLR, MoCo])
@pytest.mark.parametrize(("model", "expected"), [(BASE, True), (SMALL, False)])
def test_wide_encoders_do_without_and_narrow_ones_do_not(
    method: type[Objective], model: str, expected: bool
) -> None:
    leave_out_workspaces([objective(method, model)], GPU)
    assert are_left_out() is expected


def test_dinos_prototypes_keep_them() -> None:
    leave_out_workspaces([objective(DINO, BASE)], GPU)
    assert not are_left_out()


def test_one_narrow_encoder_among_wide_ones_keeps_them_for_all() -> None:
    leave_out_workspaces([objective(SimCLR, BASE), objective(SimCLR, SMALL)], GPU)
    assert not are_left_out()


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0)])
def test_other_architectures_keep_them(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    leave_out_workspaces([objective(SimCLR, BASE)], GPU)
    assert not are_left_out()


def test_a_cpu_has_none() -> None:
    leave_out_workspaces([objective(SimCLR, BASE)], torch.device("cpu"))
    assert not are_left_out()


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "kept")
    leave_out_workspaces([objective(SimCLR, BASE)], GPU)
    assert prepare_products([config(BASE), config(SMALL)], GPU) == []
    assert {each: os.environ.get(each) for each in VARIABLES} == dict.fromkeys(VARIABLES) | {
        name: "kept"
    }


def test_a_measurement_has_them_as_training_would_or_says_what_it_has_not() -> None:
    (said,) = prepare_products([config(BASE), config(SMALL)], GPU)
    assert not are_left_out() and said.startswith(f"{BASE}: training leaves")
    assert prepare_products([config(SMALL)], GPU) == []
    assert not are_left_out()
    assert prepare_products([config(BASE)], GPU) == []
    assert are_left_out()


# Weight gradients of ViT-B at 13 tokens: by itself cuBLAS splits their sums over 13,312 rows.
PRODUCTS = """
import sys, torch
from accelssl.model.simclr import SimCLR
from accelssl.train.optim import adamw
from accelssl.train.step import Step
model = SimCLR("vit_base_patch16_224" if sys.argv[1] == "wide" else "vit_tiny_patch16_224").cuda()
Step(model, adamw(model, 0.0), "bf16", is_compiled=False)
x, g = (torch.randn(13312, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
    g.T @ x
    torch.cuda.synchronize()
print(sum("split" in event.key or "Memset" in event.key for event in profile.key_averages()))
"""


@pytest.mark.gpu
def test_after_a_step_is_made_products_are_one_launch_and_others_are_not() -> None:
    probe = "import torch; print(torch.cuda.get_device_capability())"
    if "(9, 0)" not in printed(probe):
        pytest.skip("needs a GPU of Hopper's architecture")
    assert printed(PRODUCTS, "wide") == "0"
    assert printed(PRODUCTS, "narrow") != "0"


def printed(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
