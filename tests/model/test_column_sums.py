"""The last sum over rows, of any number of groups and columns."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accelssl.model.add_norm_kernel import add_norm_sums
from accelssl.model.column_sums import SIZES, column_sums
from accelssl.model.gelu_kernel import gelu_sums
from tests.model.interpreter import interpreting

MANY = 2 * SIZES["GROUPS"] + 1
SHAPES = [(1, 1), (3, 32), (SIZES["GROUPS"], 33), (MANY, 70), (0, 40), (4, 0)]


def check(parts: Tensor, sums: Tensor) -> None:
    torch.testing.assert_close(sums.double(), parts.double().sum(0), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_add_up_in_the_interpreter(shape: tuple[int, int]) -> None:
    parts = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with interpreting() as pool:
        check(parts, pool.submit(column_sums, parts).result())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (1809, 3072)])
def test_columns_add_up_on_a_gpu_and_to_the_same_bits_again(shape: tuple[int, int]) -> None:
    parts = torch.randn(shape, device="cuda")
    for kernel in (gelu_sums, add_norm_sums):
        sums = column_sums(parts, kernel)
        check(parts, sums)
        assert torch.equal(sums, column_sums(parts, kernel))
