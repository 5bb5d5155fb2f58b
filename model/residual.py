"""The pending branch of a block, and the sum and norm at the start of the next block.

Shapes: N views, L tokens with CLS, D width, C the input width of a linear layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.layers.norm import LayerNorm
from torch import Tensor, nn

from accelssl.model.ops.add_norm import add_norm, fits


class Branch(NamedTuple):
    """A branch output, rows_NLD + bias_D, that is not yet added to x.

    bias_D is the bias of the linear layer that computed the rows, if the code that adds the bias
    also computes its gradient. bias_D is None if the rows already include the bias.
    """

    rows_NLD: Tensor
    bias_D: Tensor | None = None


def summed(x_NLD: Tensor, branch: Branch) -> Tensor:
    """Return x_NLD with the branch added."""
    x_NLD = x_NLD + branch.rows_NLD
    return x_NLD if branch.bias_D is None else x_NLD + branch.bias_D


def summed_and_normed(norm: nn.Module, x_NLD: Tensor, branch: Branch) -> tuple[Tensor, Tensor]:
    """Return x_NLD with the branch added, and norm(x_NLD); one pass where add_norm fits."""
    products = dtype_of_products(x_NLD)
    if has_own_norm(norm, x_NLD) and branch.rows_NLD.dtype == products:
        assert isinstance(norm, nn.LayerNorm)
        return add_norm(x_NLD, *branch, norm.weight, norm.bias, norm.eps)
    x_NLD = summed(x_NLD, branch)
    return x_NLD, norm(x_NLD)


def has_own_norm(norm: nn.Module, x_NLD: Tensor) -> bool:
    """Return True if add_norm fits the stream and replaces `norm`, torch's or timm's plain one."""
    if type(norm) not in (nn.LayerNorm, LayerNorm) or getattr(norm, "_fast_norm", False):
        return False
    assert isinstance(norm, nn.LayerNorm)
    width = x_NLD.shape[-1]
    is_affine = norm.weight is not None and norm.bias is not None
    is_of_rows = norm.normalized_shape == (width,)
    dtypes = x_NLD.dtype, dtype_of_products(x_NLD)
    return is_affine and is_of_rows and fits(width, x_NLD.device, *dtypes)


def projected(
    linear: nn.Module, rows_NLC: Tensor, then: Sequence[nn.Module], leaves_bias: bool
) -> Branch:
    """Return the linear layer's output, passed through the modules after the layer.

    The bias stays separate if the caller allows this and the modules do nothing.
    """
    if leaves_bias and can_leave_bias(linear, then):
        assert isinstance(linear, nn.Linear)
        return Branch(F.linear(rows_NLC, linear.weight), linear.bias)
    return Branch(passed(linear(rows_NLC), then))


def can_leave_bias(linear: nn.Module, then: Sequence[nn.Module]) -> bool:
    """Return True if the layer has a bias and the modules after the layer do nothing."""
    has_bias = type(linear) is nn.Linear and linear.bias is not None
    return has_bias and all(map(_does_nothing, then))


def passed(rows_NLD: Tensor, modules: Sequence[nn.Module]) -> Tensor:
    """Return the rows, passed through the modules in turn."""
    for module in modules:
        rows_NLD = module(rows_NLD)
    return rows_NLD


def _does_nothing(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0)


def dtype_of_products(x_NLD: Tensor) -> torch.dtype:
    device = x_NLD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_NLD.dtype
