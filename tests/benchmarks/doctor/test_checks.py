"""The doctor's checks of packages, cores, op and decoder: each is broken, and says so."""

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from accelssl.benchmarks.doctor import (
    dali_decoder,
    decoder,
    machine,
    op_equality,
    packages,
    pictures,
)
from accelssl.benchmarks.doctor.finding import Context
from accelssl.pipeline.compress import op
from accelssl.pipeline.draws.windows import central_windows

CUDA = torch.device("cuda")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), tmp_path)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("scratch")
    pictures.write_shown_set(scratch)
    return scratch


# Packages


@pytest.mark.parametrize(
    ("version", "verdict", "named"),
    [("1.0.20", "ok", "timm 1.0.20"), ("0.9", "broken", ">=1.0.15"), (None, "broken", "missing")],
)
def test_what_accelssl_needs_is_there_and_new_enough(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    version: str | None,
    verdict: str,
    named: str,
) -> None:
    needs = ["timm>=1.0.15", 'boto3>=99; extra == "s3"', 'pywin32; sys_platform == "win32"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    monkeypatch.setattr(packages, "version_of", {"timm": version}.get)
    finding = packages.check_requirements(context)
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict == "broken")
    assert named in finding.found and "boto3" not in finding.found


def test_an_extra_that_is_missing_is_absent_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    checks = {
        "boto3": packages.check_object_storage,
        "torchvision": packages.check_torchvision,
        "tensorboard": packages.check_tensorboard,
    }
    for package, check in checks.items():
        monkeypatch.setitem(sys.modules, package, None)
        finding = check(context)
        assert finding.verdict == "absent" and package in finding.found
        assert "pip install" in finding.remedy


def test_boto3_that_is_missing_for_a_set_on_s3_is_broken(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    finding = packages.check_object_storage(replace(context, data="s3://bucket/set"))
    assert finding.verdict == "broken"


def test_a_torch_that_multiplies_wrongly_is_broken(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    assert packages.check_torch(context).verdict == "ok"
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: real(a, b) + 1)
    assert packages.check_torch(context).verdict == "broken"


@pytest.mark.parametrize(
    ("installed", "driver", "verdict", "named"),
    [
        ({"nvidia-dali-cuda130": "2.4.0"}, (13, 1), "ok", "2.4.0 for CUDA 13"),
        ({"nvidia-dali-cuda130": "2.4.0"}, (12, 8), "broken", "12.8"),
        ({"nvidia-dali-cuda120": "2.4.0"}, (12, 8), "ok", "2.4.0 for CUDA 12"),
        ({"nvidia-dali-cuda120": "2.4.0"}, (13, 0), "ok", "torch is for CUDA 13"),
        (
            {"nvidia-dali-cuda120": "2", "nvidia-dali-cuda130": "2"},
            (13, 0),
            "broken",
            "cuda120 and ",
        ),
        ({}, (13, 0), "ok", "not installed as a package"),
    ],
)
def test_dali_must_be_for_a_cuda_that_the_driver_runs(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    installed: dict[str, str],
    driver: tuple[int, int],
    verdict: str,
    named: str,
) -> None:
    monkeypatch.setattr(packages, "version_of", installed.get)
    monkeypatch.setattr(packages, "driver_cuda", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    finding = packages.check_dali_package(replace(context, device=CUDA))
    assert finding.verdict == verdict and named in finding.found
    assert bool(finding.remedy) == (verdict == "broken")


# Cores


def test_the_quota_is_the_least_of_this_cgroup_and_those_above(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "cgroup" / "pod" / "container"
    inner.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/pod/container\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OF_PROCESS", tmp_path / "self")
    assert machine.core_quota() is None
    (inner / "cpu.max").write_text("max 100000\n")
    assert machine.core_quota() is None
    (inner.parent / "cpu.max").write_text("250000 100000\n")
    assert machine.core_quota() == 2.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert machine.core_quota() == 0.5


def test_the_quota_of_the_first_version_of_cgroups_is_read_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "cgroup" / "cpu,cpuacct"
    folder.mkdir(parents=True)
    (tmp_path / "self").write_text("5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OF_PROCESS", tmp_path / "self")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.core_quota() is None
    (folder / "cpu.cfs_quota_us").write_text("300000\n")
    assert machine.core_quota() == 3.0


@pytest.mark.parametrize(
    ("device", "cores", "quota", "verdict", "remedy"),
    [
        ("cpu", 2, None, "ok", ""),
        ("cpu", 8, 8.0, "ok", ""),
        ("cpu", 8, 2.5, "slow", "--threads 2"),
        ("cpu", 8, 0.5, "slow", "--threads 1"),
        ("cuda", 3, None, "slow", "4 cores"),
        ("cuda", 4, None, "ok", ""),
    ],
)
def test_too_few_cores_and_a_quota_below_them_are_slow(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    device: str,
    cores: int,
    quota: float | None,
    verdict: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    monkeypatch.setattr(machine, "core_quota", lambda: quota)
    finding = machine.check_cores(replace(context, device=torch.device(device)))
    assert finding.verdict == verdict and remedy in finding.remedy
    assert finding.found.startswith(f"{cores} of {os.cpu_count()}")


@pytest.mark.parametrize(
    ("policy", "verdict", "found"),
    [
        ("passive", "ok", "OMP_WAIT_POLICY is passive"),
        ("PASSIVE", "ok", "OMP_WAIT_POLICY is passive"),
        ("active", "slow", "OMP_WAIT_POLICY is 'active'"),
        (None, "slow", "OMP_WAIT_POLICY is not set"),
    ],
)
def test_threads_must_wait_passively(
    monkeypatch: pytest.MonkeyPatch, context: Context, policy: str | None, verdict: str, found: str
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    finding = machine.check_waiting_threads(context)
    assert (finding.verdict, finding.found) == (verdict, found)
    assert ("OMP_WAIT_POLICY=passive" in finding.remedy) == (verdict == "slow")


# The op


def test_a_wrong_op_is_broken_and_a_right_one_is_not(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setattr(op_equality, "_SIDES_P", (30,))
    assert op_equality.check_op(context).verdict == "ok"
    right = op._in_torch
    monkeypatch.setattr(op, "_in_torch", lambda *inputs: right(*inputs) * (1 + 1e-4))
    finding = op_equality.check_op(context)
    assert finding.verdict == "broken" and "Do not train" in finding.remedy
    monkeypatch.setattr(op, "_in_torch", lambda *inputs: right(*inputs) * float("nan"))
    assert op_equality.check_op(context).verdict == "broken"


def test_one_wrong_token_is_enough_to_be_broken(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.setattr(op_equality, "_SIDES_P", (30,))
    right = op._in_torch

    def one_wrong(*inputs: object) -> torch.Tensor:
        tokens = right(*inputs)  # type: ignore[arg-type]
        tokens[0, 0] = tokens[0, 1]
        return tokens

    monkeypatch.setattr(op, "_in_torch", one_wrong)
    assert op_equality.check_op(context).verdict == "broken"


@pytest.mark.parametrize(
    ("chosen", "errors", "verdict"),
    [
        ("cuda", {"cuda": 0.5, "triton": 0.5, "torch": 0.5}, "ok"),
        ("cuda", {"cuda": 1.1, "triton": 0.5, "torch": 0.5}, "broken"),
        ("cuda", {"cuda": 0.5, "triton": 3.0, "torch": 0.5}, "broken"),
        ("cuda", {"cuda": 0.5, "torch": 0.5}, "ok"),
        ("triton", {"triton": 0.5, "torch": 0.5}, "slow"),
        ("torch", {"torch": 0.5}, "slow"),
    ],
)
def test_on_a_gpu_every_implementation_counts_and_a_slower_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    chosen: str,
    errors: dict[str, float],
    verdict: str,
) -> None:
    def error_of(name: str, device: torch.device, sides_p: Sequence[int]) -> float:
        assert sides_p == ((30, 16, 48) if name == chosen else (30,))
        if name not in errors:
            raise RuntimeError(f"{name} is not here\nand more")
        return errors[name]

    monkeypatch.setattr(op_equality, "_largest_error", error_of)
    monkeypatch.setattr(op, "runs_on", lambda device: chosen)
    finding = op_equality.check_op(replace(context, device=CUDA))
    assert finding.verdict == verdict
    for name in ("cuda", "triton", "torch"):
        told = f"{name} {errors[name]:.2g}" if name in errors else f"{name} does not run ({name} is"
        assert told in finding.found


def test_the_implementation_that_is_used_must_run(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    def fails(name: str, device: torch.device, sides_p: Sequence[int]) -> float:
        raise RuntimeError("launch failed")

    monkeypatch.setattr(op_equality, "_largest_error", fails)
    monkeypatch.setattr(op, "runs_on", lambda device: "cuda")
    with pytest.raises(RuntimeError, match="launch failed"):
        op_equality.check_op(replace(context, device=CUDA))


# Decoding


def test_tokens_are_the_pictures_that_pillow_shows(shown: Path) -> None:
    finding = decoder.check_data_path_on_cpu(Context(torch.device("cpu"), shown))
    assert finding.verdict == "ok" and "levels" in finding.found


def test_a_crop_one_pixel_off_is_broken(monkeypatch: pytest.MonkeyPatch, shown: Path) -> None:
    def shifted(sizes_N2: NDArray[np.int64]) -> NDArray[np.float32]:
        windows: NDArray[np.float32] = central_windows(sizes_N2)
        windows[:, [1, 3]] += 1
        return windows

    monkeypatch.setattr("accelssl.pipeline.evaluation.central_windows", shifted)
    finding = decoder.check_data_path_on_cpu(Context(torch.device("cpu"), shown))
    assert finding.verdict == "broken" and "Do not train" in finding.remedy


def test_pictures_to_time_are_plain_jpegs_as_large_as_imagenets() -> None:
    jpegs = pictures.typical_jpegs()
    assert 90e3 < sum(map(len, jpegs)) / len(jpegs) < 130e3
    assert len({jpeg.tobytes() for jpeg in jpegs}) == len(jpegs)
    image = Image.open(io.BytesIO(jpegs[3].tobytes()))
    assert image.size == (500, 375) and image.mode == "RGB" and "progressive" not in image.info


def test_the_decoders_rate_is_that_of_images_decoded() -> None:
    few = pictures.typical_jpegs()[:8]
    assert dali_decoder.images_per_s(few, torch.device("cpu"), 0, 0.1) > 1
    cut = [*few, few[0][: len(few[0]) // 2].copy()]
    with pytest.raises(RuntimeError):
        dali_decoder.images_per_s(cut, torch.device("cpu"), 0, 0.1)


@pytest.mark.parametrize(("by_core", "verdict"), [(99.0, "slow"), (101.0, "ok")])
def test_a_slow_decoder_on_the_cpu_is_slow(
    monkeypatch: pytest.MonkeyPatch, context: Context, by_core: float, verdict: str
) -> None:
    monkeypatch.setattr(decoder, "usable_cores", lambda: 7)
    monkeypatch.setattr(decoder, "_rate", lambda context, load: 7 * by_core)
    finding = decoder.check_decoder_on_cpu(context)
    assert finding.verdict == verdict and f"{7 * by_core:,.0f} images/s" in finding.found
