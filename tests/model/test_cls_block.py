"""The last block, computed for its CLS token alone, against timm's own block."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block, ParallelScalingBlock
from torch import Tensor, nn

from accelssl.model.cls_block import cls_row
from accelssl.model.ops.row_attention import fits
from accelssl.model.residual import Branch

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"qkv_bias": True},
    "without biases": {"qkv_bias": False, "proj_bias": False},
    "normed queries and keys": {"qkv_bias": True, "qk_norm": True},
    "normed values and hidden": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "scaled layers": {"init_values": 0.1, "qkv_bias": True},
    "depth drop": {"drop_path": 0.5, "qkv_bias": True},
}


def results(block: nn.Module, x: Tensor, row: Any, weight: Tensor) -> list[Tensor]:
    """The row, and the gradients of a sum over it in the input and in every parameter."""
    torch.manual_seed(3)  # of the depth drop
    x = x.clone().requires_grad_()
    out = row(block, x)
    parameters = list(block.parameters())
    grads = torch.autograd.grad((out * weight).sum(), [x, *parameters], allow_unused=True)
    zeros = [torch.zeros_like(p) for p in (x, *parameters)]
    return [out, *(z if g is None else g for g, z in zip(grads, zeros, strict=True))]


def of_halves(block: nn.Module, x: Tensor) -> Tensor:
    """Half of x, which is exact, being what the block before has left to be added."""
    return cls_row(block, x / 2, Branch(x / 2))


def whole(block: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = block(x)
    return out[:, :1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", [1, 2, 13])
@pytest.mark.parametrize("has_own_attention", [False, True])
def test_row_and_gradients_are_the_whole_blocks(
    variant: str, tokens: int, has_own_attention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelssl.model.cls_block.fits", lambda *shape: has_own_attention)
    torch.manual_seed(0)
    block = Block(24, 3, **VARIANTS[variant]).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    x, weight = torch.randn(4, tokens, 24).double(), torch.randn(4, 1, 24).double()
    ours, theirs = (results(block, x, run, weight) for run in (of_halves, whole))
    for mine, timms in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, timms, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [13, 57, 226])
def test_on_a_gpu_it_errs_at_most_twice_as_much_as_the_whole_block(tokens: int) -> None:
    torch.manual_seed(0)
    block = Block(128, 2, qkv_bias=True).cuda()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.1)
    x, weight = torch.randn(8, tokens, 128).cuda(), torch.randn(8, 1, 128).cuda()
    right = results(deepcopy(block).double(), x.double(), whole, weight.double())
    with torch.autocast("cuda", torch.bfloat16):
        assert fits(tokens, 64, x.device, torch.bfloat16)
        ours, theirs = (results(block, x, run, weight) for run in (of_halves, whole))
    for mine, timms, exact in zip(ours, theirs, right, strict=True):
        floor = 2 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
        assert (mine - exact).abs().max() <= 2 * (timms - exact).abs().max() + floor


def test_a_block_of_another_kind_is_computed_whole() -> None:
    block = ParallelScalingBlock(24, 3).eval()
    x = torch.randn(2, 5, 24)
    assert torch.equal(of_halves(block, x), whole(block, x))


def test_the_other_rows_are_not_computed() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    block, x = Block(24, 3), torch.randn(2, 64, 24)
    with FlopCounterMode(display=False) as one:
        of_halves(block, x)
    with FlopCounterMode(display=False) as all_:
        block(x)
    assert one.get_total_flops() < 0.25 * all_.get_total_flops()
