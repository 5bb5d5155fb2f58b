"""Stochastic depth, against timm's."""

import pytest
import timm.layers
import torch
from torch._dynamo.testing import CompileCounter

from accelssl.model.drop_path import DropPath
from accelssl.model.vit import Encoder


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_samples_are_left_out_as_often_as_in_timms_and_the_others_grow(rate: float) -> None:
    rows = torch.ones(20_000, 1, 1)
    for module in (DropPath(rate), timm.layers.DropPath(rate)):
        torch.manual_seed(0)
        found = module(rows)
        values = found.unique().tolist()
        assert values == pytest.approx([1.0] if rate == 0 else [0.0, 1 / (1 - rate)])
        deviation = (rate * (1 - rate) / len(rows)) ** 0.5
        assert abs(float((found == 0).float().mean()) - rate) <= 4.5 * deviation


def test_a_sample_is_left_out_whole_and_in_its_own_precision() -> None:
    rows = torch.randn(64, 5, 3, dtype=torch.bfloat16)
    torch.manual_seed(0)
    found = DropPath(0.5)(rows)
    assert found.dtype == torch.bfloat16
    for row, out in zip(rows, found, strict=True):
        assert torch.equal(out, 2 * row) or not out.any()
    assert torch.equal(DropPath(0.5).eval()(rows), rows)


def test_blocks_of_different_rates_are_one_program() -> None:
    torch._dynamo.reset()
    programs = CompileCounter()
    blocks = Encoder("vit_tiny_patch16_224", drop_path=0.1).vit.blocks
    x = torch.randn(2, 5, 192)
    for block in blocks:
        block.compile(dynamic=False, backend=programs)
        block(x)
    assert programs.frame_count == 1
