"""CUDA source of the op without a GPU: it compiles, and run as C++ it equals the definition.

NVRTC needs no GPU. A C++ compiler builds the same source without the PTX instructions, and one CPU
thread runs each GPU thread.
"""

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.pipeline import views
from accelssl.pipeline.compress import kernel_source, reference
from accelssl.pipeline.compression import PATCH_SIDES
from accelssl.pipeline.cuda import nvrtc
from accelssl.pipeline.draws.augmentation import Column, augmentation

pytest.importorskip("cuda.bindings", reason="needs NVRTC")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "accelssl" / "kernels"


@pytest.mark.parametrize(
    ("p", "architecture"),
    [
        *((p, "sm_90") for p in PATCH_SIDES),
        *(
            pytest.param(p, older_or_newer, marks=[] if p == 16 else pytest.mark.slow)
            for p in PATCH_SIDES
            for older_or_newer in ("sm_80", "sm_100")
        ),
    ],
)
def test_it_compiles_to_machine_code_without_a_gpu(p: int, architecture: str, cache: Path) -> None:
    code = kernel_source.machine_code(p, "bfloat16", architecture)
    assert code.startswith(b"\x7fELF") and b"augment_patchify" in code and b"sum_gray" in code


@pytest.mark.parametrize("output", kernel_source.OUTPUTS)
def test_it_compiles_for_every_output(output: str, cache: Path) -> None:
    assert kernel_source.machine_code(16, output, "sm_90").startswith(b"\x7fELF")


def test_an_architecture_that_is_too_new_gets_ptx(cache: Path) -> None:
    assert b".target sm_" in kernel_source.machine_code(16, "bfloat16", "sm_999")


def test_an_architecture_that_is_too_old_is_named(cache: Path) -> None:
    with pytest.raises(nvrtc.CompilationFailed, match="sm_35"):
        kernel_source.machine_code(16, "bfloat16", "sm_35")


def test_code_is_compiled_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = kernel_source.machine_code(30, "bfloat16", "sm_90")
    assert len(list(cache.iterdir())) == 1

    def refuse(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "_compiled", refuse)
    assert kernel_source.machine_code(30, "bfloat16", "sm_90") == code


def test_many_first_uses_at_once_leave_one_whole_file(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        ask = [pool.submit(kernel_source.machine_code, 16, "bfloat16", "sm_90") for _ in range(4)]
        codes = {future.result() for future in ask}
    (kept,) = cache.iterdir()
    assert {kept.read_bytes()[32:]} == codes


def test_a_damaged_cache_is_made_anew(cache: Path) -> None:
    code = kernel_source.machine_code(16, "bfloat16", "sm_90")
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for damage in (b"", b"\x7fELF of something else", whole[:-100]):
        kept.write_bytes(damage)
        assert kernel_source.machine_code(16, "bfloat16", "sm_90") == code
        assert kept.read_bytes() == whole


def test_a_user_without_a_home_does_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: object = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert kernel_source.machine_code(16, "bfloat16", "sm_90").startswith(b"\x7fELF")


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel_source.machine_code(16, "bfloat16", "sm_90").startswith(b"\x7fELF")


def test_what_the_compiler_says_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_source, "constants", lambda p: "nonsense;")
    with pytest.raises(nvrtc.CompilationFailed, match="nonsense"):
        kernel_source.machine_code(16, "bfloat16", "sm_90")


# ---- what it computes ----

ENTRY = """
extern "C" void run(const u8* crops, const float* params, const i64* keep_idx, float* sums,
                    float* tokens, int n, int kept, int side) {
    launch(n * PARTS, GRAY_THREADS, [=] { sum_gray(crops, params, sums, side); });
    launch(n * ((kept + TOKENS - 1) / TOKENS), THREADS, [=] {
        augment_patchify(crops, params, keep_idx, sums, tokens, kept, side);
    });
}
"""


def built(p: int, folder: Path) -> ctypes.CDLL:
    """Compile the kernels for float32 as a library."""
    sources = files("accelssl.pipeline.compress")
    for name in ("colour.cuh", "output.cuh", "crop.cuh", "shrink.cuh", "blur.cuh"):
        (folder / name).write_text((sources / name).read_text())
    (folder / "constants.cuh").write_text(kernel_source.constants(p))
    code = (sources / "augment_patchify.cu").read_text().replace('#include "ptx.cuh"', "")
    memory = f"alignas(16) static float shared[{kernel_source.shared_bytes(p) // 4}];"
    code = code.replace("extern __shared__ __align__(16) float shared[];", memory)
    header = Path(__file__).parents[1] / "cuda_on_cpu.h"
    (folder / "op.cpp").write_text(f'#include "{header}"\n{code}{ENTRY}')
    numbers = [
        option for option in kernel_source.options(p, "float32", "sm_90") if option.startswith("-D")
    ]
    numbers = [n for n in numbers if "GRAY_THREADS" not in n] + ["-DGRAY_THREADS=32"]
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        "-ffp-contract=off",
        "-w",
    ]
    command += [
        "-fno-strict-aliasing",
        *numbers,
        "-o",
        str(folder / "op.so"),
        str(folder / "op.cpp"),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "op.so"))


def tokens_of(library: ctypes.CDLL, crops: Tensor, params: Tensor, keep: Tensor) -> Tensor:
    n, kept = keep.shape
    tokens = torch.full((n, kept, 768), float("nan"))
    sums = torch.full((n, kernel_source.PARTS), float("nan"))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (crops, params, keep, sums, tokens)]
    library.run(*pointers, n, kept, crops.shape[1])
    return tokens


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("p", PATCH_SIDES)
def test_run_as_cpp_it_computes_the_definition(p: int, tmp_path: Path) -> None:
    library = built(p, tmp_path)
    for side in (2 * p, 3 * p):
        rng = np.random.default_rng(side)
        n, patches = 6, (side // p) ** 2
        crops = torch.from_numpy(rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8))
        params = augmentation(views.simclr(240)[0], 0, side, 0, np.arange(n))
        params[:, Column.SIGMA] = [0, 0, 0.3, 1.9, 0, 1.0]
        params[:, Column.ORDER] = [-1, 3, 7, 23, 0, -1]
        params[:, Column.SOLARIZE] = rng.integers(0, 2, n)
        params[0] = [-1, 0, 0, 0, 0, 0, 0, 0, 1]
        keep = np.stack([rng.permutation(patches)[: patches - 1] for _ in range(n)])
        inputs = crops, torch.from_numpy(params), torch.from_numpy(keep)
        tokens, expected = tokens_of(library, *inputs), reference.augment_patchify(*inputs, p)
        torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-5)
        if p == 16:
            assert torch.equal(tokens[0], expected[0])
