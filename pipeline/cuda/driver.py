"""Load machine code on a GPU and launch its kernels, through the CUDA driver."""

from functools import cache
from typing import Any

import torch

from accelssl.pipeline.cuda.nvrtc import CompilationFailed


def functions(device: int, code: bytes, names: tuple[str, ...], shared: int) -> list[Any]:
    """Load machine code on a device. Return its module and the functions with these names.

    The functions are valid while the module is referenced. shared: the most bytes of shared memory
    of a launch of the last function. Raises CompilationFailed.
    """
    driver = _driver()
    with torch.cuda.device(device):
        torch.empty(1, device=f"cuda:{device}")  # makes the device's context current
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
    """Launch a kernel. shape: blocks, threads per block, bytes of shared memory per block.

    Raises RuntimeError if the launch fails, or if an earlier kernel on the device has failed.
    """
    blocks, threads, shared = shape
    error, *_ = _driver().cuLaunchKernel(
        kernel, blocks, 1, 1, threads, 1, 1, shared, stream, (arguments, types), 0
    )
    if int(error):
        raise RuntimeError(
            f"The launch of {blocks} blocks of {threads} threads failed: {error.name}."
        )


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CompilationFailed(f"cuda-bindings cannot be imported ({error})") from error
    return driver


def checked(result: tuple[Any, ...]) -> Any:
    """Return the result of a driver call. Raise CompilationFailed if the call failed."""
    error, *values = result
    if int(error):
        raise CompilationFailed(f"the CUDA driver reports {error.name}")
    return values[0] if values else None
