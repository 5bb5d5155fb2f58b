"""The GPU: its driver, its memory, what it computes, and the two compilers for it."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from accelssl.benchmarks.doctor.finding import Context, Finding, mega
from accelssl.benchmarks.doctor.packages import driver_cuda
from accelssl.pipeline.compress.kernel_source import is_cached, machine_code
from accelssl.pipeline.cuda.nvrtc import CompilationFailed

DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
LEAST_FREE_BYTES = 8e9
LEAST_COPY_BYTES_PER_S = 5e9
_COPIED_BYTES = 2**28
_CACHE = "XDG_CACHE_HOME"


def check_gpu(context: Context) -> Finding:
    """Check for a GPU that torch can use."""
    if context.on_gpu:
        return _working_gpu(context.device)
    if context.asked == "cpu":
        return Finding("GPU", "absent", "not looked at: --device is cpu")
    is_named = context.asked != "auto"
    if not any(file.exists() for file in DRIVER_FILES):
        found = "this machine has no NVIDIA driver"
        if is_named:
            remedy = f"Install one (nvidia.com/drivers) to use {context.asked}, or --device cpu."
            return Finding("GPU", "broken", found, remedy)
        return Finding("GPU", "absent", f"{found}; training uses the CPU")
    driver = driver_cuda()
    newest = f"up to CUDA {driver[0]}.{driver[1]}" if driver else "whose library cannot be loaded"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") and not is_named:
        return Finding("GPU", "absent", "CUDA_VISIBLE_DEVICES hides it", "Unset it to use the GPU.")
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    what = f"there is a driver ({newest}), but torch {torch.__version__}, {build}, sees no GPU"
    remedy = "Run nvidia-smi; update the driver, or install a torch for its CUDA (pytorch.org)."
    return Finding("GPU", "broken", what, remedy)


def _working_gpu(device: torch.device) -> Finding:
    card = torch.cuda.get_device_properties(device)
    numbers = torch.arange(2**20, device=device, dtype=torch.int64)
    total, expected = int((numbers * 2).sum()), 2**20 * (2**20 - 1)
    driver = driver_cuda()
    newest = f"driver for CUDA up to {driver[0]}.{driver[1]}" if driver else "driver unknown"
    found = (
        f"{card.name}, compute capability {card.major}.{card.minor}, "
        f"{card.multi_processor_count} multiprocessors, {newest}, torch for {torch.version.cuda}"
    )
    if total != expected:
        return Finding("GPU", "broken", f"{found}; a sum is {total}, not {expected}", "Replace it.")
    return Finding("GPU", "ok", found)


def check_gpu_memory(context: Context) -> Finding:
    """Check that enough GPU memory is free."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(context.device)
    found = f"{mega(free_bytes)} of {mega(total_bytes)} are free"
    if free_bytes < LEAST_FREE_BYTES:
        remedy = "End other programs on this GPU (nvidia-smi lists them), or train with --batch."
        return Finding("GPU memory", "slow", found, remedy)
    return Finding("GPU memory", "ok", found)


def check_copies(context: Context) -> Finding:
    """Measure copies from pinned memory to the GPU, the path of encoded images."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=context.device)
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize(context.device)
        started_s = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(context.device)
        seconds.append(time.perf_counter() - started_s)
    rate = _COPIED_BYTES / min(seconds)
    if rate < LEAST_COPY_BYTES_PER_S:
        remedy = "See nvidia-smi -q for the PCIe link: fewer lanes or an older generation than due."
        return Finding("copy to the GPU", "slow", f"{mega(rate)}/s", remedy)
    return Finding("copy to the GPU", "ok", f"{mega(rate)}/s")


def check_bf16(context: Context) -> Finding:
    """Measure bfloat16 products on tensor cores."""
    major, minor = torch.cuda.get_device_capability(context.device)
    if major < 8:
        remedy = "Train with --precision fp32 and expect a fraction of the speed of newer cards."
        return Finding("bf16", "slow", f"not in compute capability {major}.{minor}", remedy)
    ones = torch.ones(256, 256, dtype=torch.bfloat16, device=context.device)
    if not bool((ones @ ones == 256).all()):
        return Finding("bf16", "broken", "a product of ones is wrong", "Install torch anew.")
    return Finding("bf16", "ok", "products are exact where they should be")


_KERNELS = 16, "bfloat16"
"""Patch side and output of the kernels that are compiled as a trial."""


def check_nvrtc(context: Context) -> Finding:
    """Compile the op for this card and cache the result for the next start."""
    major, minor = torch.cuda.get_device_capability(context.device)
    architecture = f"sm_{major}{minor}"
    try:
        with tempfile.TemporaryDirectory() as empty, _cache_in(empty):
            started_s = time.perf_counter()
            machine_code(*_KERNELS, architecture)
            compile_s = time.perf_counter() - started_s
        was_there = is_cached(*_KERNELS, architecture)
        machine_code(*_KERNELS, architecture)
        is_there = is_cached(*_KERNELS, architecture)
    except CompilationFailed as error:
        remedy = "Install torch with its CUDA libraries, cuda-bindings and nvidia-cuda-nvrtc."
        return Finding("NVRTC", "broken", str(error), remedy)
    found = f"compiles the op for {architecture} in {compile_s:.1f} s"
    if not is_there:
        remedy = f"Make ~/.cache writable, or name another folder with {_CACHE}."
        return Finding("NVRTC", "slow", f"{found}, anew at each start", remedy)
    return Finding("NVRTC", "ok", f"{found}; in the cache {'already' if was_there else 'now'}")


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    before = os.environ.get(_CACHE)
    os.environ[_CACHE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHE]
        else:
            os.environ[_CACHE] = before


def check_triton(context: Context) -> Finding:
    """Compile and run a small Triton kernel, as torch.compile does with larger ones."""
    try:
        from accelssl.benchmarks.doctor.triton_kernel import doubled, version
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        remedy = "Install it with: pip install triton (torch.compile needs it)"
        return Finding("Triton", "absent", "triton is not installed", remedy)
    started_s = time.perf_counter()
    numbers = torch.arange(1000, device=context.device)
    try:
        result = doubled(numbers)
    except Exception as error:  # Triton raises what its compiler, gcc and the driver make it
        remedy = "Install a C compiler (gcc) and Python's headers: Triton needs both."
        return Finding("Triton", "broken", f"{type(error).__name__}: {error}", remedy)
    took_s = time.perf_counter() - started_s
    if not torch.equal(result, 2 * numbers):
        return Finding("Triton", "broken", "twice a number is wrong", "Install triton anew.")
    return Finding("Triton", "ok", f"{version}, compiles and runs a kernel in {took_s:.1f} s")
