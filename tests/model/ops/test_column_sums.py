"""The last sum over rows, of any number of groups and columns."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accelssl.model.ops.column_sums import SIZES, WARPS, column_sums, sum_columns
from tests.machine_code import compiled
from tests.model.interpreter import interpreting

MANY = 2 * SIZES["GROUPS"] + 1
SHAPES = [(1, 1), (3, 32), (SIZES["GROUPS"], 33), (MANY, 70), (0, 40), (4, 0)]


def whole_numbers(groups: int, columns: int) -> Tensor:
    """Of 13 bits, so that float32 holds each sum of 1,809 exactly, and no shorter format does."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(-4096, 4097, (groups, columns), generator=g).float()


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with interpreting() as pool:
        yield pool


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_add_up_in_the_interpreter(
    shape: tuple[int, int], interpreter: ProcessPoolExecutor
) -> None:
    parts = whole_numbers(*shape)
    sums = interpreter.submit(column_sums, parts, "sums").result()
    assert torch.equal(sums.double(), parts.double().sum(0))


@pytest.mark.parametrize("name", ["gelu_sums", "add_norm_sums"])
def test_a_trace_knows_the_kernel_by_the_name_it_was_launched_under(name: str) -> None:
    told = {**SIZES, "NAME": name, "num_warps": WARPS}
    types = {"parts_ptr": "*fp32", "sums_ptr": "*fp32", "groups": "i32", "width": "i32"}
    assert f".entry {name}(" in compiled(sum_columns, told, 90, types).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (1809, 3072)])
def test_columns_add_up_on_a_gpu_and_to_the_same_bits_again(shape: tuple[int, int]) -> None:
    parts = whole_numbers(*shape).cuda()
    rounded = 0.3 * parts
    for name in ("gelu_sums", "add_norm_sums"):
        assert torch.equal(column_sums(parts, name).double(), parts.double().sum(0))
        assert torch.equal(column_sums(rounded, name), column_sums(rounded, name))
