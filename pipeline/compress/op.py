"""Fused op `accelssl::augment_patchify`: contract, checks, custom op, public function.

Legend of shape suffixes: N crops, H x W pixels, C = 3 channels, P augmentation parameters, L kept
patches, V = 768 values per token.

Contract:
- crops_NHWC: uint8, square, H = W divisible by p. NCHW is also accepted; it is copied unless it is
  a permuted NHWC.
- params_NP: float32, one row per crop (augmentation.Column).
- keep_idx_NL: int64, indices into the row-major grid of the *final* (flipped) crop.
- Result tokens_NLV: contiguous, values in the order of a flattened conv weight (channel, row,
  column), computed in float32 and rounded once to `dtype`.
- The op draws nothing at random, has no gradient and aliases no input.

One definition (reference.py) has three implementations: CUDA C++ compiled at first use, Triton if
CUDA C++ fails to compile, and the torch definition on the CPU.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from accelssl.pipeline.compress import reference
from accelssl.pipeline.compression import PATCH_SIDES, TOKEN_VALUES
from accelssl.pipeline.draws.augmentation import Column

Implementation = Literal["auto", "cuda", "triton", "torch"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("auto", "cuda", "triton", "torch")


def augment_patchify(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype = torch.float32,
    implementation: Implementation = "auto",
) -> Tensor:
    """Augment, cut into p x p patches, keep keep_idx, shrink to 16 x 16. Return tokens_NLV.

    Raises ValueError with the wrong value if shapes, dtypes, devices or p break the contract above.
    An index outside the grid raises ValueError on the CPU. On a GPU, CUDA and torch stop the device
    with a message and Triton returns a token of NaN.
    """
    if crops_NHWC.ndim == 4 and crops_NHWC.shape[1] == 3:
        crops_NHWC = crops_NHWC.permute(0, 2, 3, 1)
    _check(crops_NHWC, params_NP, keep_idx_NL, p, dtype, implementation)
    tokens: Tensor = _augment_patchify(crops_NHWC, params_NP, keep_idx_NL, p, dtype, implementation)
    return tokens


@torch.library.custom_op("accelssl::augment_patchify", mutates_args=())
def _augment_patchify(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    on_cpu = crops_NHWC.device.type == "cpu"
    if on_cpu:  # a GPU would have to wait for the indices
        _check_places(keep_idx_NL, (crops_NHWC.shape[1] // p) ** 2)
    if implementation == "auto":
        implementation = "torch" if on_cpu else best(crops_NHWC.device.index, p, dtype)
    return _of(implementation)(crops_NHWC, params_NP, keep_idx_NL, p, dtype)


@_augment_patchify.register_fake
def _(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype,
    implementation: str,
) -> Tensor:
    return crops_NHWC.new_empty((*keep_idx_NL.shape, TOKEN_VALUES), dtype=dtype)


@cache
def best(device: int, p: int, dtype: torch.dtype) -> Implementation:
    """Return the implementation that "auto" selects on a GPU. Warn once if CUDA C++ fails."""
    from accelssl.pipeline.compress import cuda_kernel
    from accelssl.pipeline.cuda.nvrtc import CompilationFailed

    try:
        cuda_kernel.load(device, p, dtype)
        return "cuda"
    except CompilationFailed as error:
        other: Implementation = "triton"
        try:
            import triton  # noqa: F401
        except ImportError:
            other = "torch"
        _warn_once(f"The CUDA kernel cannot be used ({error}). Using {other} instead.")
        return other


def runs_on(device: torch.device) -> str:
    """Return a name for the implementation that "auto" selects on a device."""
    if device.type == "cpu":
        return "torch, the definition"
    index = torch.cuda.current_device() if device.index is None else device.index
    return best(index, PATCH_SIDES[0], torch.bfloat16)


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _of(implementation: str) -> Callable[[Tensor, Tensor, Tensor, int, torch.dtype], Tensor]:
    # Imported when first used: Triton or the CUDA libraries may be missing.
    if implementation == "cuda":
        from accelssl.pipeline.compress import cuda_kernel

        return cuda_kernel.augment_patchify
    if implementation == "triton":
        from accelssl.pipeline.compress import triton_kernel

        return triton_kernel.augment_patchify
    return _in_torch


def _in_torch(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> Tensor:
    return reference.augment_patchify(crops_NHWC, params_NP, keep_idx_NL, p).to(dtype)


def _check(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype,
    implementation: str,
) -> None:
    shape = tuple(crops_NHWC.shape)
    if crops_NHWC.dtype != torch.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2]:
        raise ValueError(f"crops are {crops_NHWC.dtype} {shape}: need uint8 (N, H, H, 3).")
    if p not in PATCH_SIDES or not shape[1] or shape[1] % p:
        raise ValueError(f"p = {p} for {shape[1]} px: need a divisor of H among {PATCH_SIDES}.")
    if params_NP.dtype != torch.float32 or params_NP.shape != (shape[0], len(Column)):
        raise ValueError(
            f"params are {params_NP.dtype} {tuple(params_NP.shape)}: "
            f"need float32 ({shape[0]}, {len(Column)})."
        )
    if keep_idx_NL.dtype != torch.int64 or keep_idx_NL.ndim != 2 or len(keep_idx_NL) != shape[0]:
        raise ValueError(
            f"keep_idx is {keep_idx_NL.dtype} {tuple(keep_idx_NL.shape)}: "
            f"need int64 ({shape[0]}, L)."
        )
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype {dtype}: need float32, bfloat16 or float16.")
    devices = {tensor.device for tensor in (crops_NHWC, params_NP, keep_idx_NL)}
    if len(devices) > 1:
        raise ValueError(f"inputs are on {sorted(map(str, devices))}: need one device.")
    _check_implementation(implementation, crops_NHWC.device.type)


def _check_implementation(implementation: str, device: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r}: need one of {IMPLEMENTATIONS}.")
    interpreted = implementation == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if implementation in ("cuda", "triton") and device != "cuda" and not interpreted:
        raise ValueError(f"implementation {implementation!r} on {device}: it needs a GPU.")


def _check_places(keep_idx_NL: Tensor, patches: int) -> None:
    if keep_idx_NL.numel():
        low, high = int(keep_idx_NL.min()), int(keep_idx_NL.max())
        if low < 0 or high >= patches:
            raise ValueError(f"keep_idx runs from {low} to {high}: need 0 to {patches - 1}.")
