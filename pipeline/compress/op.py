"""The fused op `accelssl::augment_patchify`: contract, checks, custom op, public function.

Contract. crops_NHWC: uint8, square, H = W divisible by p. params_NP: float32, a row of numbers a
crop (augmentation.Column). keep_idx_NL: int64, positions in the row-major grid of the *final*
(flipped) crop. Result tokens_NLV: V = 768 values in the order of a flattened conv weight (channel,
row, column), computed in float32 and rounded once to `dtype`. It draws nothing at random, has no
gradient (its inputs are pixels) and aliases no input.
"""

import torch
from torch import Tensor

from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.augmentation import Column
from accelssl.pipeline.compress.compression import PATCH_SIDES, TOKEN_VALUES


def augment_patchify(
    crops_NHWC: Tensor,
    params_NP: Tensor,
    keep_idx_NL: Tensor,
    p: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Augment, cut into p x p patches, keep keep_idx, shrink to 16 x 16: tokens_NLV in `dtype`.

    Raises ValueError, naming the value, when shapes, dtypes or p break the contract above.
    """
    _check(crops_NHWC, params_NP, keep_idx_NL, p, dtype)
    tokens: Tensor = _augment_patchify(crops_NHWC, params_NP, keep_idx_NL, p, dtype)
    return tokens


@torch.library.custom_op("accelssl::augment_patchify", mutates_args=())
def _augment_patchify(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> Tensor:
    _check_places(keep_idx_NL, (crops_NHWC.shape[1] // p) ** 2)
    tokens = reference.augment_patchify(crops_NHWC, params_NP, keep_idx_NL, p)
    return tokens.to(dtype)


@_augment_patchify.register_fake
def _(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> Tensor:
    return crops_NHWC.new_empty((*keep_idx_NL.shape, TOKEN_VALUES), dtype=dtype)


def _check(
    crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor, p: int, dtype: torch.dtype
) -> None:
    shape = tuple(crops_NHWC.shape)
    if crops_NHWC.dtype != torch.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2]:
        raise ValueError(f"crops are {crops_NHWC.dtype} {shape}: need uint8 (N, H, H, 3).")
    if p not in PATCH_SIDES or shape[1] % p:
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


def _check_places(keep_idx_NL: Tensor, patches: int) -> None:
    """On a GPU the indexing kernel itself refuses what lies outside the grid, all but negatives."""
    if keep_idx_NL.device.type == "cpu" and keep_idx_NL.numel():
        low, high = int(keep_idx_NL.min()), int(keep_idx_NL.max())
        if low < 0 or high >= patches:
            raise ValueError(f"keep_idx runs from {low} to {high}: need 0 to {patches - 1}.")
