"""The doctor's checks of a GPU: what each says of a driver, card, compiler or queue at fault."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accelssl.benchmarks.doctor import decoder, device, jpeg_engines, packages, queues
from accelssl.benchmarks.doctor.finding import Context
from accelssl.pipeline.cuda import nvrtc
from accelssl.pipeline.decode import hardware_queues

CUDA = torch.device("cuda")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A GPU's, though there may be none."""
    return Context(CUDA, tmp_path)


# Driver and card


@pytest.mark.parametrize(
    ("asked", "has_driver", "visible", "verdict", "named"),
    [
        ("auto", False, None, "absent", "no NVIDIA driver"),
        ("cpu", True, None, "absent", "--device is cpu"),
        ("auto", True, "", "absent", "CUDA_VISIBLE_DEVICES"),
        ("auto", True, None, "broken", "up to CUDA 12.4"),
        ("cuda:1", True, "", "broken", "up to CUDA 12.4"),
        ("cuda:1", False, None, "broken", "no NVIDIA driver"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_broken_if_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    asked: str,
    has_driver: bool,
    visible: str | None,
    verdict: str,
    named: str,
) -> None:
    monkeypatch.setattr(device, "DRIVER_FILES", (tmp_path if has_driver else tmp_path / "none",))
    monkeypatch.setattr(device, "driver_cuda", lambda: (12, 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    finding = device.check_gpu(Context(torch.device("cpu"), tmp_path, asked=asked))
    assert finding.verdict == verdict and named in finding.found
    assert finding.remedy or verdict == "absent"


def test_without_a_driver_there_is_no_version_of_its_cuda() -> None:
    if any(file.exists() for file in device.DRIVER_FILES):
        pytest.skip("there is one")
    assert packages.driver_cuda() is None


@pytest.mark.parametrize(("free", "verdict"), [(7.9e9, "slow"), (8.1e9, "ok")])
def test_a_gpu_whose_memory_is_taken_is_slow(
    monkeypatch: pytest.MonkeyPatch, context: Context, free: float, verdict: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80e9))
    finding = device.check_gpu_memory(context)
    assert finding.verdict == verdict and finding.found.endswith("of 80.0 GB are free")
    assert ("nvidia-smi" in finding.remedy) == (verdict == "slow")


@pytest.mark.parametrize(("capability", "verdict"), [((7, 5), "slow"), ((8, 0), "ok")])
def test_cards_before_ampere_have_no_bf16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: tuple[int, int], verdict: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    on_cpu = Context(torch.device("cpu"), tmp_path)  # where the product is computed
    assert device.check_bf16(on_cpu).verdict == verdict
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: real(a, b) * 2)
    assert device.check_bf16(on_cpu).verdict == ("slow" if verdict == "slow" else "broken")


# Compilers


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An H100's architecture, which NVRTC compiles for anywhere, and a cache of its own."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_nvrtc_compiles_and_keeps_what_it_compiled(hopper: Path, context: Context) -> None:
    try:
        nvrtc._library()
    except nvrtc.CompilationFailed as error:
        pytest.skip(str(error))
    first = device.check_nvrtc(context)
    assert first.verdict == "ok" and "sm_90" in first.found and "in the cache now" in first.found
    assert len(list((hopper / "accelssl" / "kernels").iterdir())) == 1
    assert "in the cache already" in device.check_nvrtc(context).found
    assert os.environ["XDG_CACHE_HOME"] == str(hopper)


def test_a_cache_that_cannot_be_written_is_slow(hopper: Path, context: Context) -> None:
    hopper.touch()  # a file, where the folder should be
    try:
        finding = device.check_nvrtc(context)
    finally:
        assert os.environ["XDG_CACHE_HOME"] == str(hopper)
    if finding.verdict == "broken":
        pytest.skip(finding.found)
    assert finding.verdict == "slow" and "anew at each start" in finding.found


def test_a_missing_nvrtc_is_broken_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, hopper: Path, context: Context
) -> None:
    def missing() -> None:
        raise nvrtc.CompilationFailed("NVRTC cannot be loaded: no such file")

    monkeypatch.setattr(nvrtc, "_library", missing)
    finding = device.check_nvrtc(context)
    assert finding.verdict == "broken" and "no such file" in finding.found and finding.remedy


def test_triton_doubles_numbers() -> None:
    """In a fresh process in which Triton interprets kernels on the CPU."""
    pytest.importorskip("triton")
    script = (
        "import torch\nfrom pathlib import Path\n"
        "from accelssl.benchmarks.doctor import device\n"
        "from accelssl.benchmarks.doctor.finding import Context\n"
        "finding = device.check_triton(Context(torch.device('cpu'), Path('.')))\n"
        "print(finding.verdict, finding.found)"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.stdout.startswith("ok ") and "compiles and runs" in ran.stdout, ran.stderr


def _no_compiler(numbers: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize(
    ("doubled", "found", "remedy"),
    [
        (lambda numbers: numbers, "twice a number is wrong", "anew"),
        (_no_compiler, "RuntimeError: Failed to find C compiler", "gcc"),
    ],
)
def test_triton_that_is_wrong_or_fails_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, doubled: Any, found: str, remedy: str
) -> None:
    kernel = SimpleNamespace(doubled=doubled, version="3")
    monkeypatch.setitem(sys.modules, "accelssl.benchmarks.doctor.triton_kernel", kernel)
    finding = device.check_triton(Context(torch.device("cpu"), tmp_path))
    assert finding.verdict == "broken" and finding.found == found and remedy in finding.remedy


def test_triton_that_is_missing_is_absent(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    monkeypatch.delitem(sys.modules, "accelssl.benchmarks.doctor.triton_kernel", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    finding = device.check_triton(context)
    assert finding.verdict == "absent" and "pip install triton" in finding.remedy


# Hardware decoder


@pytest.mark.parametrize(
    ("engines", "rates", "verdict", "named"),
    [
        ((1, 8), {1.0: 19_500.0, 0.0: 7_000.0}, "ok", "19,500 images/s by hardware (1 engine"),
        ((1, 8), {1.0: 7_100.0, 0.0: 7_000.0}, "slow", "7,000 by CUDA cores"),
        ((0, 0), {0.0: 7_000.0}, "absent", "no hardware JPEG decoder"),
    ],
)
def test_a_hardware_decoder_must_be_there_and_be_used(
    monkeypatch: pytest.MonkeyPatch,
    context: Context,
    engines: tuple[int, int],
    rates: dict[float, float],
    verdict: str,
    named: str,
) -> None:
    monkeypatch.setattr(jpeg_engines, "jpeg_engines", lambda device: engines)
    monkeypatch.setattr(decoder, "_rate", lambda context, load: rates[load])
    finding = decoder.check_hardware_decoder(context)
    assert finding.verdict == verdict and named in finding.found
    assert bool(finding.remedy) == (verdict != "ok")


class Nvjpeg:
    """Answers as nvJPEG does: a status, and numbers through pointers."""

    def __init__(self, created: int, asked: int) -> None:
        self._created, self._asked = created, asked
        self.open = 0

    def nvjpegCreateEx(self, backend: int, a: None, b: None, flags: int, handle: Any) -> int:
        assert (backend, flags) == (3, 0)
        self.open += self._created == 0
        return self._created

    def nvjpegGetHardwareDecoderInfo(self, handle: Any, engines: Any, cores: Any) -> int:
        engines._obj.value, cores._obj.value = 1, 5
        return self._asked

    def nvjpegDestroy(self, handle: Any) -> int:
        self.open -= 1
        return 0


@pytest.mark.parametrize(
    ("created", "asked", "answer"),
    [(0, 0, (1, 5)), (7, 0, (0, 0)), (9, 0, (0, 0)), (0, 7, (0, 0)), (1, 0, "1"), (0, 6, "6")],
)
def test_nvjpegs_answer_is_understood(
    monkeypatch: pytest.MonkeyPatch, created: int, asked: int, answer: tuple[int, int] | str
) -> None:
    library = Nvjpeg(created, asked)
    monkeypatch.setattr(jpeg_engines, "_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    if isinstance(answer, str):
        with pytest.raises(jpeg_engines.NoAnswer, match=f"returned {answer}"):
            jpeg_engines.jpeg_engines(torch.device("cpu"))
    else:
        assert jpeg_engines.jpeg_engines(torch.device("cpu")) == answer
    assert library.open == 0


def test_an_nvjpeg_that_cannot_be_asked_is_broken(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    def fails(device: torch.device) -> None:
        raise jpeg_engines.NoAnswer("nvjpegCreateEx returned 1")

    monkeypatch.setattr(jpeg_engines, "jpeg_engines", fails)
    finding = decoder.check_hardware_decoder(context)
    assert finding.verdict == "broken" and "returned 1" in finding.found


def test_the_installed_nvjpeg_has_the_functions_that_are_asked() -> None:
    try:
        library = jpeg_engines._library()
    except jpeg_engines.NoAnswer as error:
        pytest.skip(str(error))
    for name in ("nvjpegCreateEx", "nvjpegGetHardwareDecoderInfo", "nvjpegDestroy"):
        assert hasattr(library, name)


# Queues


def test_queues_are_slow_when_the_environment_holds_fewer(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    seen = dict.fromkeys(hardware_queues._what_was_seen, False)
    monkeypatch.setattr(hardware_queues, "_what_was_seen", seen)
    monkeypatch.setenv(hardware_queues.VARIABLE, "8")
    finding = queues.check_queues(context)
    assert finding.verdict == "slow" and "is 8:" in finding.found and "=32" in finding.remedy
    monkeypatch.setenv(hardware_queues.VARIABLE, "32")
    assert queues.check_queues(context).verdict == "ok"


@pytest.mark.parametrize(("beside_32", "verdict"), [(0.4, "ok"), (9.8, "slow")])
def test_queues_without_effect_are_slow(
    monkeypatch: pytest.MonkeyPatch, context: Context, beside_32: float, verdict: str
) -> None:
    def figures(name: str, number: int) -> dict[str, float]:
        beside = {8: 10.2, 32: beside_32}[number]
        return {"wait_ms": 10.0, "alone_ms": 0.3, "beside_ms": beside}

    monkeypatch.setattr(queues, "measure", figures)
    finding = queues.check_effect_of_queues(context)
    assert finding.verdict == verdict
    assert f"10.20 ms with 8 queues, {beside_32:.2f} with 32" in finding.found


def test_a_trial_has_the_number_of_queues_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ran(command: list[str], env: dict[str, str], **options: Any) -> SimpleNamespace:
        asked.append(env[hardware_queues.VARIABLE])
        return SimpleNamespace(returncode=0, stdout='{"wait_ms": 1.5}', stderr="")

    monkeypatch.setattr(subprocess, "run", ran)
    assert queues.measure("cuda", 8) == {"wait_ms": 1.5}
    assert queues.measure("cuda", 32) and asked == ["8", "32"]


def test_a_trial_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"the trial with 8 queues failed: .*no_such_device"):
        queues.measure("no_such_device", 8)


@pytest.mark.gpu
def test_8_queues_hold_up_short_kernels_and_32_do_not() -> None:
    few, many = (queues.measure("cuda", number) for number in (8, 32))
    print(few, many)
    assert 5 < many["wait_ms"] < 20
    assert few["beside_ms"] > 0.5 * few["wait_ms"] > many["beside_ms"]


@pytest.mark.gpu
def test_the_cards_own_answers_make_sense() -> None:
    engines, cores = jpeg_engines.jpeg_engines(CUDA)
    name = torch.cuda.get_device_name()
    assert (engines > 0) == (cores > 0)
    if "H100" in name or "H200" in name:
        assert engines >= 1
    driver = packages.driver_cuda()
    assert driver is not None and driver >= (12, 0)
