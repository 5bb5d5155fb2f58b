"""Attention over at most 128 tokens in Triton: a program holds one head of one view.

The kernel computes short_attention.definition and keeps its contract. Only the input is saved
for the backward pass: all weights of a head fit a program, so the backward pass recomputes them.

Shapes: N views, L tokens, D width, C = 3 D.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from accelssl.model.ops import short_attention_one_tile as one_tile
from accelssl.model.ops import short_attention_two_tiles as two_tiles
from accelssl.model.ops.triton_device import on

FIRST: int = two_tiles.FIRST.value
MOST_OF_TWO = FIRST + 32
"""Two tiles take two thirds of the time of one of 128 rows at 65 tokens, but more at 113 (H200)."""
FROM_SHARED_MEMORY = (9, 10)
"""Compute capabilities (majors) whose tensor cores take both tiles of a product from shared memory.
On other GPUs two_tiles does not have enough registers."""

FAULTY_PTXAS = (12, 8)
"""The last ptxas version with a fault, shipped by Triton 3.6.

For two tiles, the faulty ptxas makes products read shared memory through registers that nothing
has filled. Versions 12.9 and 13.0 are correct (tests/model/ops/test_short_attention_on_gpus.py).
"""


class Launch(NamedTuple):
    """A kernel with its arguments and launch options."""

    kernel: Any
    options: dict[str, int]


@cache
def translates_two_tiles(capability: int) -> bool:
    """Return True if machine code for a GPU comes from a ptxas without the fault.

    capability: the GPU's major compute capability. torch's ptxas is used if torch has one, as
    torch.compile does from its first kernel on.
    """
    torchs = Path(torch.__file__).parent / "bin" / "ptxas"
    if os.access(torchs, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(torchs))
    tools = triton.knobs.nvidia
    version: str = (tools.ptxas if capability < 10 else tools.ptxas_blackwell).version
    return tuple(map(int, version.split("."))) > FAULTY_PTXAS


def launches(
    tokens: int, head_width: int, capability: int, *, in_two: bool = True
) -> tuple[Launch, Launch]:
    """Return the launches of forward and backward pass.

    capability: the GPU's major compute capability. in_two: use two tiles where they are faster.
    """
    fills_two = FIRST < tokens <= MOST_OF_TWO and head_width >= FIRST
    if not (in_two and fills_two and capability in FROM_SHARED_MEMORY):
        rows = max(16, triton.next_power_of_2(tokens))
        options = {"ROWS": rows, "num_warps": max(1, min(8, rows // 16)), "num_stages": 1}
        return (
            Launch(one_tile.short_attention_forward, options),
            Launch(one_tile.short_attention_backward, options),
        )
    rest = max(16, triton.next_power_of_2(tokens - FIRST))
    options = {"REST": rest, "num_warps": 4, "num_stages": 1}
    return (
        Launch(two_tiles.short_attention_tiles_forward, options),
        Launch(two_tiles.short_attention_tiles_backward, options),
    )


def forward(qkv_NLC: Tensor, heads: int) -> Tensor:
    """Return out_NLD of contiguous qkv_NLC, on its device."""
    n, tokens, channels = qkv_NLC.shape
    out_NLD = qkv_NLC.new_empty((n, tokens, channels // 3))
    _launch(0, qkv_NLC, heads, (qkv_NLC, out_NLD))
    return out_NLD


def backward(grad_NLD: Tensor, qkv_NLC: Tensor, heads: int) -> Tensor:
    """Return the gradient by qkv_NLC of contiguous grad_NLD and qkv_NLC."""
    of_qkv_NLC = torch.empty_like(qkv_NLC)
    _launch(1, qkv_NLC, heads, (grad_NLD, qkv_NLC, of_qkv_NLC))
    return of_qkv_NLC


def _launch(which: int, qkv_NLC: Tensor, heads: int, tensors: tuple[Tensor, ...]) -> None:
    n, tokens, channels = qkv_NLC.shape
    if not n:
        return
    device, head_width = qkv_NLC.device, channels // (3 * heads)
    on_gpu = device.type == "cuda"  # else Triton interprets
    capability = torch.cuda.get_device_capability(device)[0] if on_gpu else FROM_SHARED_MEMORY[0]
    in_two = not on_gpu or translates_two_tiles(capability)
    kernel, options = launches(tokens, head_width, capability, in_two=in_two)[which]
    with on(device):
        kernel[(n * heads,)](
            *tensors,
            tokens,
            head_width**-0.5,
            HEADS=heads,
            HEAD=head_width,
            PRECISION="ieee" if qkv_NLC.dtype == torch.float32 else "tf32",
            **options,
        )
