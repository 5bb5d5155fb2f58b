"""One row's attention against torch's in float64; without a GPU the kernel in Triton's interpreter,
and its code for GPUs that are not here."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.model.ops.row_attention import (
    MOST_TOKENS,
    definition,
    definition_backward,
    fits,
    row_attention,
)

pytest.importorskip("triton")
from accelssl.model.ops import row_attention_kernel
from tests.machine_code import compiled, refuse_spills
from tests.model.interpreter import interpreting

Passes = tuple[Tensor, Tensor, Tensor]


class Kernel(NamedTuple):
    """run: out_N1D, of_q_N1D and of_kv_NLE from q_N1D, kv_NLE, grad_N1D and heads."""

    run: Callable[[Tensor, Tensor, Tensor, int], Passes]
    dtypes: tuple[torch.dtype, torch.dtype]


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    forward, backward = row_attention_kernel.forward, row_attention_kernel.backward
    if request.param == "gpu":

        def on_gpu(q: Tensor, kv: Tensor, grad: Tensor, heads: int) -> Passes:
            q, kv, grad = q.cuda(), kv.cuda(), grad.cuda()
            of_q, of_kv = backward(grad, q, kv, heads)
            return forward(q, kv, heads).cpu(), of_q.cpu(), of_kv.cpu()

        yield Kernel(on_gpu, (torch.float16, torch.bfloat16))
        return

    def interpreted(q: Tensor, kv: Tensor, grad: Tensor, heads: int) -> Passes:
        passes = pool.submit(forward, q, kv, heads), pool.submit(backward, grad, q, kv, heads)
        return passes[0].result(), *passes[1].result()

    with interpreting() as pool:
        yield Kernel(interpreted, (torch.float16, torch.float32))  # it knows no bfloat16


def drawn(n: int, tokens: int, heads: int, head_width: int) -> Passes:
    """q, kv, grad: rows whose logits differ by several units, and a gradient, in float64."""
    generator = torch.Generator().manual_seed(tokens)
    width = heads * head_width
    shapes = (n, 1, width), (n, tokens, 2 * width), (n, 1, width)
    q, kv, grad = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return 1.5 * q, 1.5 * kv, grad


def of_torch(q_N1D: Tensor, kv_NLE: Tensor, grad_N1D: Tensor, heads: int) -> Passes:
    """The same by scaled_dot_product_attention."""
    q_N1D, kv_NLE = q_N1D.clone().requires_grad_(), kv_NLE.clone().requires_grad_()
    n, tokens, _ = kv_NLE.shape
    q = q_N1D.view(n, 1, heads, -1).transpose(1, 2)
    k, v = kv_NLE.view(n, tokens, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(q_N1D.shape)
    of_q, of_kv = torch.autograd.grad(out, [q_N1D, kv_NLE], grad_N1D)
    return out.detach(), of_q, of_kv


@pytest.mark.parametrize("tokens", [1, 13, 57, 226])
def test_the_definition_is_torchs_attention(tokens: int) -> None:
    q, kv, grad = drawn(3, tokens, 2, 16)
    ours = definition(q, kv, 2), *definition_backward(grad, q, kv, 2)
    torch.testing.assert_close(ours, of_torch(q, kv, grad, 2))


def test_its_gradient_is_that_of_finite_differences() -> None:
    q, kv, _ = drawn(2, 5, 2, 4)
    inputs = q.requires_grad_(), kv.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, kv: row_attention(q, kv, 2), inputs)


def test_the_op_keeps_the_rules_of_custom_ops() -> None:
    q, kv, grad = (x.float() for x in drawn(2, 7, 2, 16))
    ops = torch.ops.accelssl
    for rows, of_all in ((q, kv), (kv[:, :1, :32], kv.repeat(1, 2, 1)[:, ::2])):
        inputs = rows.detach().requires_grad_(), of_all.detach().requires_grad_()
        torch.library.opcheck(ops.row_attention.default, (*inputs, 2))
    torch.library.opcheck(ops.row_attention_backward.default, (grad, q, kv, 2))


@pytest.mark.parametrize(
    ("tokens", "head_width"), [(1, 16), (13, 64), (16, 32), (57, 64), (65, 128), (226, 64)]
)
def test_the_kernel_errs_at_most_twice_as_much_as_torch_does(
    kernel: Kernel, tokens: int, head_width: int
) -> None:
    for dtype in kernel.dtypes:
        q, kv, grad = (x.to(dtype) for x in drawn(2, tokens, 2, head_width))
        right = of_torch(q.double(), kv.double(), grad.double(), 2)
        ordinary = of_torch(q, kv, grad, 2)
        passes = kernel.run(q, kv, grad, 2)
        assert {x.dtype for x in passes} == {dtype}
        for ours, torchs, exact in zip(passes, ordinary, right, strict=True):
            assert ours.shape == exact.shape
            floor = 4 * torch.finfo(dtype).eps * exact.abs().max()
            assert (ours - exact).abs().max() <= 2 * (torchs - exact).abs().max() + floor


def test_no_view_or_head_sees_another(kernel: Kernel) -> None:
    q, kv, grad = (x.to(kernel.dtypes[0]) for x in drawn(2, 9, 2, 16))
    before = kernel.run(q, kv, grad, 2)
    other = kv.view(2, 9, 2, 2, 16).clone()
    other[1, :, :, 1] = 7.0
    after = kernel.run(q, other.view_as(kv), grad, 2)
    for a, b in zip(before, after, strict=True):
        a, b = (x.reshape(2, -1, 2, 16) for x in (a, b))
        assert torch.equal(a[0], b[0]) and torch.equal(a[1, :, 0], b[1, :, 0])
        assert not torch.equal(a[1, :, 1], b[1, :, 1])


@pytest.mark.parametrize(
    ("q", "kv"), [((1, 1, 96), (1, MOST_TOKENS + 1, 192)), ((1, 1, 95), (1, 4, 190))]
)
def test_too_many_tokens_and_odd_widths_are_refused(
    q: tuple[int, ...], kv: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=re.escape(str(kv))):
        row_attention(torch.zeros(q), torch.zeros(kv), 2)


def test_a_query_that_is_no_single_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 4, 96\)"):
        row_attention(torch.zeros(1, 4, 96), torch.zeros(1, 4, 192), 2)


def test_it_fits_half_precision_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda", 0), torch.bfloat16
    assert fits(226, 64, gpu, bf16)
    assert not fits(257, 32, gpu, bf16) and not fits(129, 128, gpu, bf16)
    assert not fits(57, 80, gpu, bf16)
    assert not fits(57, 64, torch.device("cpu"), bf16) and not fits(57, 64, gpu, torch.float32)
    monkeypatch.setenv("ACCELSSL_KERNELS", "torch")
    assert not fits(226, 64, gpu, bf16)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("tokens", "head_width"), [(13, 64), (57, 64), (226, 64), (128, 128)])
def test_a_program_spills_nothing(
    capability: int, tokens: int, head_width: int, tmp_path: Path
) -> None:
    told = {"HEADS": 12, "HEAD": head_width, **row_attention_kernel.options(tokens, head_width)}
    for function in (
        row_attention_kernel.row_attention_forward,
        row_attention_kernel.row_attention_backward,
    ):
        refuse_spills(compiled(function, told, capability).asm["cubin"], tmp_path)
