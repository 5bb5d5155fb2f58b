"""GELU in one pass each way: `accelssl::gelu`, and the gradient of the bias before it for nothing.

Contract. h_NLC, of any number of dimensions, is what a linear layer put out, its bias_C added.
Result a_NLC, contiguous, of the same dtype: h times the share of a standard normal that is below h
(Hendrycks and Gimpel, arXiv 1606.08415, without the tanh), computed in float32 at least. The bias
is taken only to be given its gradient: the sums over rows of that by h, in float32 at least and
before that is rounded to h's dtype. The product must not give it another:
gelu(F.linear(x, weight, bias.detach()), bias).

Compiled by itself a GELU takes three passes on the way back: once more forward, for the gradient of
the next layer's weight, its own gradient, and the sums. Here it is one, which reads two tensors and
writes one: no compiler looks into the op, so its result is kept from the forward pass instead. That
is C more numbers a token and block, about a fifth of a step's memory, and only done where a block's
are less than a hundredth of the GPU's. Triton on a GPU in half precision, the definition below
elsewhere.

Shapes: N views, L tokens with CLS, C width of the hidden layer.
"""

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.switches import uses_kernels

"""Set to 0 to have torch's GELU."""

# Twelve blocks of ViT-B then take an eighth of it more than they would: a batch that was chosen to
# fill a GPU still fits it.
_MEMORIES = 100
_HALVES = (torch.bfloat16, torch.float16)
_HAS_TRITON = find_spec("triton") is not None


def gelu(h_NLC: Tensor, bias_C: Tensor) -> Tensor:
    """Return a_NLC of the contract above, with gradients. Raise ValueError for a bias unlike h."""
    if bias_C.shape != h_NLC.shape[-1:]:
        raise ValueError(
            f"the bias is {tuple(bias_C.shape)} and the rows {tuple(h_NLC.shape)}: need one number "
            "for each column."
        )
    a_NLC: Tensor = _gelu(h_NLC, bias_C)
    return a_NLC


def fits(values: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the kernel runs: on a GPU, in half precision, if switched on.

    The `values` numbers that a block keeps for the kernel must also be a small part of GPU memory.
    """
    return (
        device.type == "cuda"
        and _HAS_TRITON
        and uses_kernels()
        and dtype in _HALVES
        and 2 * values <= _room_bytes(device)
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _room_bytes(device: torch.device) -> int:
    total_bytes: int = torch.cuda.get_device_properties(device).total_memory
    return total_bytes // _MEMORIES


@torch.library.custom_op("accelssl::gelu", mutates_args=())
def _gelu(h_NLC: Tensor, bias_C: Tensor) -> Tensor:
    if h_NLC.device.type == "cuda" and h_NLC.dtype in _HALVES:
        from accelssl.model.ops import gelu_kernel

        return gelu_kernel.forward(h_NLC.contiguous())
    return definition(h_NLC)


@_gelu.register_fake
def _(h_NLC: Tensor, bias_C: Tensor) -> Tensor:
    return torch.empty_like(h_NLC, memory_format=torch.contiguous_format)


@torch.library.custom_op("accelssl::gelu_backward", mutates_args=())
def _gelu_backward(grad_NLC: Tensor, h_NLC: Tensor) -> tuple[Tensor, Tensor]:
    if h_NLC.device.type == "cuda" and h_NLC.dtype in _HALVES:
        from accelssl.model.ops import gelu_kernel

        return gelu_kernel.backward(grad_NLC.contiguous(), h_NLC.contiguous())
    return definition_backward(grad_NLC, h_NLC)


@_gelu_backward.register_fake
def _(grad_NLC: Tensor, h_NLC: Tensor) -> tuple[Tensor, Tensor]:
    of_h_NLC = torch.empty_like(h_NLC, memory_format=torch.contiguous_format)
    return of_h_NLC, h_NLC.new_empty(h_NLC.shape[-1], dtype=_wide(h_NLC))


def definition(h_NLC: Tensor) -> Tensor:
    """Compute the contract in torch: the path without a GPU and the reference for the kernel."""
    return F.gelu(h_NLC.contiguous().to(_wide(h_NLC))).to(h_NLC.dtype)


def definition_backward(grad_NLC: Tensor, h_NLC: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the loss by h_NLC and its sums over rows, sums_C.

    The input is the gradient by the result. The sums are in float32 at least.
    """
    wide, width = _wide(h_NLC), h_NLC.shape[-1]
    of_h = torch.ops.aten.gelu_backward(grad_NLC.contiguous().to(wide), h_NLC.contiguous().to(wide))
    return of_h.to(h_NLC.dtype), of_h.reshape(-1, width).sum(0)


def _wide(h_NLC: Tensor) -> torch.dtype:
    return torch.promote_types(h_NLC.dtype, torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _differentiate(ctx: Any, grad_NLC: Tensor) -> tuple[Tensor, Tensor]:
    (h_NLC,) = ctx.saved_tensors
    of_h_NLC, sums_C = _gelu_backward(grad_NLC, h_NLC)
    return of_h_NLC, sums_C  # autograd rounds these to the bias's dtype


_gelu.register_autograd(_differentiate, setup_context=_setup_context)
