"""Load machine code on a GPU and launch its kernels, through the CUDA driver."""

from functools import cache
from typing import Any

import torch

from accelssl.pipeline.cuda.nvrtc import CompilationFailed


def functions(device: int, code: bytes, names: tuple[str, ...], shared: int) -> list[Any]:
    """Loads code on a device: the module, which keeps it loaded, and its functions of these names.

    shared: bytes of shared memory that a launch of the last of them may ask for. Raises
    CompilationFailed.
    """
    driver = _driver()
    with torch.cuda.device(device):
        torch.empty(1, device=f"cuda:{device}")  # the device's context must be the current one
        module = checked(driver.cuModuleLoadData(code))
        loaded = [checked(driver.cuModuleGetFunction(module, name.encode())) for name in names]
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(loaded[-1], attribute, shared))
    return [module, *loaded]


def launch(
    kernel: Any,
    shape: tuple[int, int, int],
    stream: int,
    arguments: tuple[int, ...],
    types: tuple[Any, ...],
) -> None:
    """Launches a kernel. shape: blocks, threads of each, bytes of shared memory of each.

    Raises RuntimeError: also for what an earlier kernel did wrong, as every call of CUDA does.
    """
    blocks, threads, shared = shape
    error, *_ = _driver().cuLaunchKernel(
        kernel, blocks, 1, 1, threads, 1, 1, shared, stream, (arguments, types), 0
    )
    if int(error):
        raise RuntimeError(
            f"A kernel of {blocks} blocks of {threads} threads could not be launched: {error.name}."
        )


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CompilationFailed(f"the package cuda-bindings is missing: {error}") from error
    return driver


def checked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver gives besides its error, which is raised as CompilationFailed."""
    error, *values = result
    if int(error):
        raise CompilationFailed(f"the CUDA driver: {error.name}")
    return values[0] if values else None
