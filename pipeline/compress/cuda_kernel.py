"""Load and launch the fused op's kernels in CUDA C++ (augment_patchify.cu).

The op makes two launches on the current stream of the crops' device: partial sums of the mean gray,
then the tokens. It reads nothing back and its launches do not depend on values, so a CUDA graph can
capture it after one call with the same p, dtype and device, which compiles and loads the kernels.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accelssl.pipeline.compress.kernel_source import (
    GRAY_THREADS,
    PARTS,
    machine_code,
    shared_bytes,
    threads,
    tokens_per_block,
)
from accelssl.pipeline.compression import TOKEN_VALUES
from accelssl.pipeline.cuda.driver import functions, launch

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


class _Kernels(NamedTuple):
    """Loaded kernels; `module` keeps them loaded."""

    module: Any
    sum_gray: Any
    augment_patchify: Any


def augment_patchify(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> Tensor:
    """Return tokens_NLV for inputs that keep the contract of op.py.

    An index outside the grid stops the device with a message, like an index error in PyTorch.
    Raises CompilationFailed if the code cannot be compiled or loaded.
    """
    (n, kept), side = keep_idx_NL.shape, crops_NHWC.shape[1]
    device = crops_NHWC.device
    tokens = torch.empty((n, kept, TOKEN_VALUES), dtype=dtype, device=device)
    if not tokens.numel():
        return tokens
    kernels = load(device.index, p, dtype)
    crops_NHWC = _aligned(crops_NHWC)
    params_NP, keep_idx_NL = params_NP.contiguous(), keep_idx_NL.contiguous()
    gray_sums = torch.empty((n, PARTS), device=device)
    crops, params, keep_idx, sums, out = (
        tensor.data_ptr() for tensor in (crops_NHWC, params_NP, keep_idx_NL, gray_sums, tokens)
    )
    blocks = n * -(-kept // tokens_per_block(p))
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        pointers = (_POINTER,) * 3
        arguments: tuple[int, ...] = (crops, params, sums, side)
        shape = (n * PARTS, GRAY_THREADS, 0)
        launch(kernels.sum_gray, shape, stream, arguments, (*pointers, _INT))
        arguments = (crops, params, keep_idx, sums, out, kept, side)
        types = (*pointers, _POINTER, _POINTER, _INT, _INT)
        shape = (blocks, threads(p), shared_bytes(p))
        launch(kernels.augment_patchify, shape, stream, arguments, types)
    return tokens


@cache
def load(device: int, p: int, dtype: torch.dtype) -> _Kernels:
    """Compile the kernels, or read them from the disk cache, and load them on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    code = machine_code(p, str(dtype).removeprefix("torch."), f"sm_{major}{minor}")
    names = ("sum_gray", "augment_patchify")
    return _Kernels(*functions(device, code, names, shared_bytes(p)))


def _aligned(crops_NHWC: Tensor) -> Tensor:
    """Return the crops contiguous and at an address aligned to 16 bytes."""
    crops_NHWC = crops_NHWC.contiguous()
    return crops_NHWC.clone() if crops_NHWC.data_ptr() % 16 else crops_NHWC
