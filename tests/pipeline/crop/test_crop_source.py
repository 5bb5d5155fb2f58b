"""CUDA source of the crop without a GPU: it compiles, and run as C++ it equals the definition.

See test_cuda_source.py for how CUDA code runs as C++.
"""

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from accelssl.pipeline.crop import kernel_source
from tests.pipeline.crop.crop_on_cpu import assert_as_defined, built, crops_of, noise

pytest.importorskip("cuda.bindings", reason="needs NVRTC")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "accelssl" / "kernels"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_it_compiles_to_machine_code_without_a_gpu(architecture: str, cache: Path) -> None:
    code = kernel_source.machine_code(architecture)
    assert code.startswith(b"\x7fELF") and b"crop" in code
    assert len(list(cache.iterdir())) == 1


def test_nothing_that_is_on_its_way_from_memory_is_spilled(cache: Path) -> None:
    """A spill would wait for the load. The compiler counts bytes of spills and registers."""
    from cuda.bindings import nvrtc

    texts = kernel_source.sources()
    headers = [(name, text) for name, text in texts.items() if name != "crop.cu"]
    _, program = nvrtc.nvrtcCreateProgram(
        texts["crop.cu"].encode(),
        b"crop.cu",
        len(headers),
        [text.encode() for _, text in headers],
        [name.encode() for name, _ in headers],
    )
    options = ["--gpu-architecture=sm_90", "--std=c++17", "--ftz=true", "--ptxas-options=-v"]
    options += kernel_source.defines()
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    assert int(error) == 0
    _, count = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(count)
    nvrtc.nvrtcGetProgramLog(program, log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log.decode())
    assert spills and set(spills) == {("0", "0")}
    (registers,) = re.findall(r"Used (\d+) registers", log.decode())
    assert int(registers) * kernel_source.THREADS * kernel_source.BLOCKS <= 65536


# ---- what it computes ----


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ctypes.CDLL]:
    """Compile for tiles of 128 and 512 pixels of the image."""
    late = {128: False, 512: True}
    return {p: built(3 * p, late[p], tmp_path_factory.mktemp(f"tiles{p}")) for p in late}


SHAPES = [(1, 1), (2, 3), (37, 41), (90, 61), (5, 200), (180, 7), (120, 160)]


@needs_compiler
@pytest.mark.parametrize("pixels", [128, 512])
@pytest.mark.parametrize(("size", "strip"), [(16, 16), (21, 8), (48, 20), (50, 48)])
def test_run_as_cpp_it_computes_the_definition(
    size: int, strip: int, pixels: int, libraries: dict[int, ctypes.CDLL]
) -> None:
    rng = np.random.default_rng(size + pixels)
    images = [noise(*shape, rng, skip=i) for i, shape in enumerate(SHAPES)]
    extents = np.array(SHAPES, dtype=np.float32)
    low = np.floor(rng.random((2, len(SHAPES), 2)) * extents * 0.6)
    high = low + np.ceil(rng.random(low.shape) * (extents - low))
    windows = np.concatenate([low, high], axis=2).astype(np.float32)
    windows[1, :, :2] = 0
    windows[1, :, 2:] = extents
    crops = crops_of(libraries[pixels], images, windows, size, strip)
    assert_as_defined(crops, images, windows)


@needs_compiler
def test_more_columns_than_a_block_has_threads(libraries: dict[int, ctypes.CDLL]) -> None:
    rng = np.random.default_rng(5)
    image = noise(90, 301, rng)
    windows = np.array([[[3, 1, 8, 301]], [[0, 40, 90, 80]]], dtype=np.float32)
    for size in (260, 262):
        crops = crops_of(libraries[512], [image], windows, size, 131)
        assert_as_defined(crops, [image], windows)


@needs_compiler
@pytest.mark.parametrize("pixels", [128, 512])
def test_any_scale_in_either_direction(pixels: int, libraries: dict[int, ctypes.CDLL]) -> None:
    """Scales run from parts of a pixel to windows that need tiles of one column."""
    rng = np.random.default_rng(pixels)
    shapes = [(50, 1400), (1400, 50), (60, 700), (3, 3), (400, 400)]
    images = [noise(*shape, rng, skip=i) for i, shape in enumerate(shapes)]
    narrow = [[0, 11, 50, 1400], [11, 0, 1400, 50], [7, 3, 50, 633], [1, 1, 2, 2], [0, 0, 400, 400]]
    other = [[1, 0, 2, 1399], [0, 1, 1399, 2], [0, 0, 60, 200], [0, 0, 3, 1], [399, 0, 400, 1]]
    windows = np.array([narrow, other], dtype=np.float32)
    for size in (16, 36):
        crops = crops_of(libraries[pixels], images, windows, size, 16)
        assert_as_defined(crops, images, windows)


@needs_compiler
def test_windows_between_pixels_and_scales_about_one(libraries: dict[int, ctypes.CDLL]) -> None:
    """Rounding decides the next row at scales about 1 and far from the origin."""
    rng = np.random.default_rng(7)
    image = noise(90, 130, rng)
    size = 48
    windows = [
        [at, at, at + size + by, at + size + by]
        for by in (0.0, 1e-5, -1e-5, 4e-4, -4e-4, 0.01, 0.9)
        for at in (0.0, 0.4999999, 0.5, 0.9999999, 41.99999)
    ]
    stacked = np.array(windows, dtype=np.float32)[:, None]
    crops = crops_of(libraries[128], [image], stacked, size, 20)
    assert_as_defined(crops, [image], stacked)
    assert (crops[0, 0] == image[:size, :size]).all()


@needs_compiler
def test_windows_of_next_to_nothing(libraries: dict[int, ctypes.CDLL]) -> None:
    """All outputs have one position; the kernel neither skips an output nor waits for one."""
    rng = np.random.default_rng(4)
    image = noise(40, 30, rng)
    windows = np.array(
        [
            [0, 0, 1e-30, 30],
            [0, 0, 40, 1e-42],
            [7, 3, np.nextafter(np.float32(7), np.float32(8)), 4],
            [2.5, np.nextafter(np.float32(29), np.float32(0)), 3, 29],
        ],
        dtype=np.float32,
    )[:, None]
    crops = crops_of(libraries[512], [image], windows, 48, 20)
    assert_as_defined(crops, [image], windows)


@needs_compiler
def test_the_last_row_of_an_image_is_read_no_further(libraries: dict[int, ctypes.CDLL]) -> None:
    """The last byte has every alignment modulo 16; `copy_16` fails if it reads beyond the image."""
    rng = np.random.default_rng(8)
    shapes = [(2, width) for width in range(1, 9)]
    for skip in range(16):
        images = [noise(*shape, rng, skip) for shape in shapes]
        windows = np.array([[[0, 0, h, w] for h, w in shapes]], dtype=np.float32)
        crops = crops_of(libraries[128], images, windows, 16, 16)
        assert_as_defined(crops, images, windows)


@needs_compiler
def test_the_widest_image_of_a_training_set(libraries: dict[int, ctypes.CDLL]) -> None:
    """Wide images need many tiles, of a number of columns that four divides or does not."""
    rng = np.random.default_rng(9)
    images = [noise(9, 5000, rng, skip=3), noise(9, 9500, rng, skip=1)]
    windows = np.array([[[0, 11, 9, 4988], [2, 0, 8, 9500]]], dtype=np.float32)
    for size in (60, 64):
        crops = crops_of(libraries[512], images, windows, size, 48)
        assert_as_defined(crops, images, windows)
