"""Floors are what a pencil gives for a small shape, and a step's operations are all in one."""

from dataclasses import replace

import pytest

from accelssl.benchmarks.step.floor import (
    Peaks,
    activation_bytes,
    attention_bytes,
    attention_flops,
    floors,
    layer_norm_bytes,
)
from accelssl.train.config.flops import ModelShape
from accelssl.train.methods.simclr import simclr_flops

# Two blocks of width 4 with an MLP of 8; two pairs, three patches: four views of four tokens.
SMALL = ModelShape(width=4, depth=2, block_weights=4 * 16 + 2 * 32, prefix=1, head=((4, 5), (5, 3)))
TOKEN_BYTES = 4 * 4 * 4 * 2
PEAKS = Peaks(flops_per_s=1e3, bytes_per_s=1e9)


def test_bytes_are_counted_tensor_by_tensor() -> None:
    assert attention_bytes(SMALL, TOKEN_BYTES) == (12 + 6) * TOKEN_BYTES
    assert layer_norm_bytes(SMALL, TOKEN_BYTES) == (4 + 8 + 6) * TOKEN_BYTES
    assert activation_bytes(SMALL, TOKEN_BYTES) == 5 * 2 * TOKEN_BYTES  # the last is CLS's alone
    whole = replace(SMALL, ends_in_cls_row=False)
    assert attention_bytes(whole, TOKEN_BYTES) == (12 + 12) * TOKEN_BYTES
    assert layer_norm_bytes(whole, TOKEN_BYTES) == (4 + 8 + 8 + 8) * TOKEN_BYTES
    assert activation_bytes(whole, TOKEN_BYTES) == 2 * 5 * 2 * TOKEN_BYTES


def test_floors_bound_by_operations_are_those_of_a_pencil() -> None:
    quadratic = 3 * 4 * (4 * 4 * 4 * 4 + 4 * 1 * 4 * 4)
    projection = 2 * 4 * 3 * 768 * 4  # frozen: forward alone
    first = 4 * 2 * (4 * 16 + 2 * 32)
    last = 4 * 2 * 2 * 16 + 2 * (2 * 16 + 2 * 32)
    found = floors(SMALL, 2, 3, 1000, 2, PEAKS)
    assert attention_flops(SMALL, 4, 4) == quadratic
    assert found["attention"] == pytest.approx(quadratic / 1e3)
    assert found["matrix products"] == pytest.approx((projection + 3 * 4 * (first + last)) / 1e3)
    heads = 3 * (4 * 2 * (4 * 5 + 5 * 3) + 2 * 4 * 4 * 3)
    assert found["heads and loss"] == pytest.approx(heads / 1e3)
    whole_s = found["matrix products"] + found["attention"] + found["heads and loss"]
    assert whole_s == pytest.approx(simclr_flops(SMALL, 2, 3) / 1e3)


def test_floors_bound_by_bytes_follow_the_bandwidth() -> None:
    found = floors(SMALL, 2, 3, 1000, 2, Peaks(flops_per_s=1e12, bytes_per_s=1e3))
    assert found["attention"] == pytest.approx(18 * TOKEN_BYTES / 1e3)
    assert found["layer norm"] == pytest.approx(18 * TOKEN_BYTES / 1e3)
    assert found["activation"] == pytest.approx(10 * TOKEN_BYTES / 1e3)
    assert found["heads and loss"] == pytest.approx(8 * (20 + 15) / 1e3)
    assert found["optimiser"] == pytest.approx(28.0)  # 1000 weights, read 4 times, written 3 times
    in_float32 = floors(SMALL, 2, 3, 1000, 4, Peaks(1e12, 1e3))
    assert in_float32["layer norm"] == pytest.approx(2 * found["layer norm"])
    assert in_float32["optimiser"] == found["optimiser"]
