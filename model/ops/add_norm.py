"""Residual sum and layer norm in one pass each way: `accelssl::add_norm`.

Contract. x_NLD, of any number of dimensions, is the residual stream in float32; branch_NLD, in half
precision, is what a branch's last linear layer put out, and branch_bias_D that layer's bias, where
it is not yet added. Results, both contiguous: sum_NLD, x + (branch + branch bias), in x's dtype,
and normed_NLD, its layer norm with weight_D and bias_D, in the branch's dtype: what the next linear
layer takes under autocast. All is computed in float32 at least; the mean is taken off before
squares are summed.

Backward: the gradient by x in x's dtype; that by the branch, the same numbers rounded to the
branch's; and the sums over rows that are the gradients of weight, bias and branch bias, in float32
at least. A branch's bias thus gets its gradient for nothing, which else is a pass of its own.

Each way reads and writes a row once. Compiled by itself, a norm's backward pass writes sums of
rows, for weight and bias, from so many programs that adding them up is another kernel of 12 to 20
microseconds, two for each norm. Kept for the way back are the sum and two numbers a row. Triton on
a GPU, the definition below elsewhere.

Shapes: N views, L tokens with CLS, D width, R = N L rows.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from accelssl.switches import uses_kernels

"""Set to 0 to have torch's layer norm."""

MOST_WIDTH = 2048
_HALVES = (torch.bfloat16, torch.float16)
_HAS_TRITON = find_spec("triton") is not None


def add_norm(
    x_NLD: Tensor,
    branch_NLD: Tensor,
    branch_bias_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return sum_NLD and normed_NLD of the contract above, with gradients.

    Raise ValueError for shapes that break the contract.
    """
    if branch_NLD.shape != x_NLD.shape:
        raise ValueError(
            f"the branch is {tuple(branch_NLD.shape)} and x {tuple(x_NLD.shape)}: need one shape."
        )
    for name, of_columns in (
        ("branch bias", branch_bias_D),
        ("weight", weight_D),
        ("bias", bias_D),
    ):
        if of_columns is not None and of_columns.shape != x_NLD.shape[-1:]:
            raise ValueError(
                f"the {name} is {tuple(of_columns.shape)} and x {tuple(x_NLD.shape)}: need one "
                "number for each column."
            )
    sum_NLD, normed_NLD, _ = _add_norm(x_NLD, branch_NLD, branch_bias_D, weight_D, bias_D, eps)
    return sum_NLD, normed_NLD


def fits(width: int, device: torch.device, x_dtype: torch.dtype, dtype: torch.dtype) -> bool:
    """Return True if the fast kernel runs for a stream of x_dtype and branches of `dtype`.

    The kernel needs a GPU, the switch on, and rows that begin at multiples of 16 bytes.
    """
    return (
        device.type == "cuda"
        and _HAS_TRITON
        and uses_kernels()
        and width % 8 == 0
        and width <= MOST_WIDTH
        and _are_kernels(x_dtype, dtype)
    )


def _are_kernels(x_dtype: torch.dtype, dtype: torch.dtype) -> bool:
    return x_dtype == torch.float32 and dtype in _HALVES


def _has_kernel(x_NLD: Tensor, half_NLD: Tensor) -> bool:
    is_narrow = x_NLD.shape[-1] <= MOST_WIDTH
    on_gpu = x_NLD.device.type == "cuda"
    return on_gpu and is_narrow and _are_kernels(x_NLD.dtype, half_NLD.dtype)


@torch.library.custom_op("accelssl::add_norm", mutates_args=())
def _add_norm(
    x_NLD: Tensor,
    branch_NLD: Tensor,
    branch_bias_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum_NLD, normed_NLD and stats_2R for backward: mean and 1 / deviation by row."""
    branch_bias_D = None if branch_bias_D is None else branch_bias_D.contiguous()
    rows = x_NLD.contiguous(), branch_NLD.contiguous()
    norm = weight_D.contiguous(), bias_D.contiguous()
    if _has_kernel(x_NLD, branch_NLD):
        from accelssl.model.ops import add_norm_kernel

        return add_norm_kernel.forward(*rows, branch_bias_D, *norm, eps)
    return definition(*rows, branch_bias_D, *norm, eps)


@_add_norm.register_fake
def _(
    x_NLD: Tensor,
    branch_NLD: Tensor,
    branch_bias_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    sum_NLD = torch.empty_like(x_NLD, memory_format=torch.contiguous_format)
    normed_NLD = torch.empty_like(branch_NLD, memory_format=torch.contiguous_format)
    rows = x_NLD.shape[:-1].numel()
    return sum_NLD, normed_NLD, x_NLD.new_empty((2, rows), dtype=_wide(x_NLD))


@torch.library.custom_op("accelssl::add_norm_backward", mutates_args=())
def _add_norm_backward(
    of_sum_NLD: Tensor, of_normed_NLD: Tensor, sum_NLD: Tensor, stats_2R: Tensor, weight_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients by x and branch, and sums_3D: those by weight, bias and branch bias."""
    tensors = of_sum_NLD, of_normed_NLD, sum_NLD, stats_2R, weight_D
    inputs = tuple(x.contiguous() for x in tensors)
    if _has_kernel(sum_NLD, of_normed_NLD):
        from accelssl.model.ops import add_norm_kernel

        return add_norm_kernel.backward(*inputs)
    return definition_backward(*inputs)


@_add_norm_backward.register_fake
def _(
    of_sum_NLD: Tensor, of_normed_NLD: Tensor, sum_NLD: Tensor, stats_2R: Tensor, weight_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_x_NLD = torch.empty_like(sum_NLD, memory_format=torch.contiguous_format)
    of_branch_NLD = torch.empty_like(of_normed_NLD, memory_format=torch.contiguous_format)
    width = sum_NLD.shape[-1]
    return of_x_NLD, of_branch_NLD, sum_NLD.new_empty((3, width), dtype=_wide(sum_NLD))


def definition(
    x_NLD: Tensor,
    branch_NLD: Tensor,
    branch_bias_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the contract in torch: the path without a GPU and the reference for the kernel."""
    wide = _wide(x_NLD)
    branch = branch_NLD.to(wide)
    total = x_NLD.to(wide) + (branch if branch_bias_D is None else branch + branch_bias_D)
    mean = total.mean(-1, keepdim=True)
    centred = total - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normed = centred * rstd * weight_D + bias_D
    stats_2R = torch.stack([mean.flatten(), rstd.flatten()])
    return total.to(x_NLD.dtype), normed.to(branch_NLD.dtype), stats_2R


def definition_backward(
    of_sum_NLD: Tensor, of_normed_NLD: Tensor, sum_NLD: Tensor, stats_2R: Tensor, weight_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by x and branch, given the gradients by sum and normed, and sums_3D."""
    wide = _wide(sum_NLD)
    mean, rstd = stats_2R.view(2, *sum_NLD.shape[:-1], 1).unbind(0)
    x_hat, grad = (sum_NLD.to(wide) - mean) * rstd, of_normed_NLD.to(wide)
    weighted = grad * weight_D
    slope, level = (w.mean(-1, keepdim=True) for w in (weighted * x_hat, weighted))
    of_x = of_sum_NLD.to(wide) + rstd * (weighted - level - x_hat * slope)
    sums_3D = torch.stack([w.flatten(0, -2).sum(0) for w in (grad * x_hat, grad, of_x)])
    return of_x.to(sum_NLD.dtype), of_x.to(of_normed_NLD.dtype, copy=True), sums_3D


def _wide(x_NLD: Tensor) -> torch.dtype:
    return torch.promote_types(x_NLD.dtype, torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    sum_NLD, _, stats_2R = output
    ctx.has_branch_bias, weight_D = inputs[2] is not None, inputs[3]
    ctx.mark_non_differentiable(stats_2R)
    ctx.save_for_backward(sum_NLD, stats_2R, weight_D)


def _differentiate(
    ctx: Any, of_sum_NLD: Tensor, of_normed_NLD: Tensor, of_stats_2R: Tensor | None
) -> tuple[Tensor | None, ...]:
    of_x_NLD, of_branch_NLD, sums_3D = _add_norm_backward(
        of_sum_NLD, of_normed_NLD, *ctx.saved_tensors
    )
    of_weight_D, of_bias_D, of_branch_bias_D = sums_3D.unbind(0)  # autograd rounds these to theirs
    of_branch_bias = of_branch_bias_D if ctx.has_branch_bias else None
    return of_x_NLD, of_branch_NLD, of_branch_bias, of_weight_D, of_bias_D, None


_add_norm.register_autograd(_differentiate, setup_context=_setup_context)
