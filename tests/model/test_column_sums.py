"""The last sum over rows, of any number of groups and columns."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accelssl.model.column_sums import SIZES, WARPS, column_sums, sum_columns
from tests.model.interpreter import interpreting
from tests.model.machine_code import compiled

MANY = 2 * SIZES["GROUPS"] + 1
SHAPES = [(1, 1), (3, 32), (SIZES["GROUPS"], 33), (MANY, 70), (0, 40), (4, 0)]


def check(parts: Tensor, sums: Tensor) -> None:
    torch.testing.assert_close(sums.double(), parts.double().sum(0), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_add_up_in_the_interpreter(shape: tuple[int, int]) -> None:
    parts = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with interpreting() as pool:
        check(parts, pool.submit(column_sums, parts, "sums").result())


@pytest.mark.parametrize("name", ["gelu_sums", "add_norm_sums"])
def test_a_trace_knows_the_kernel_by_the_name_it_was_launched_under(name: str) -> None:
    told = {**SIZES, "NAME": name, "num_warps": WARPS}
    types = {"parts_ptr": "*fp32", "sums_ptr": "*fp32", "groups": "i32", "width": "i32"}
    assert f".entry {name}(" in compiled(sum_columns, told, 90, types).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (1809, 3072)])
def test_columns_add_up_on_a_gpu_and_to_the_same_bits_again(shape: tuple[int, int]) -> None:
    parts = torch.randn(shape, device="cuda")
    for name in ("gelu_sums", "add_norm_sums"):
        sums = column_sums(parts, name)
        check(parts, sums)
        assert torch.equal(sums, column_sums(parts, name))
