"""Short attention against torch's in float64; without a GPU the kernel in Triton's interpreter."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.model.ops import short_attention
from accelssl.model.ops.short_attention import MOST_TOKENS, definition, definition_backward, fits

pytest.importorskip("triton")
from accelssl.model.ops import short_attention_kernel
from tests.model.interpreter import interpreting

Passes = tuple[Tensor, Tensor]


class Kernel(NamedTuple):
    """run: out_NLD and of_qkv_NLC from qkv_NLC, grad_NLD and heads."""

    run: Callable[[Tensor, Tensor, int], Passes]
    dtypes: tuple[torch.dtype, torch.dtype]


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    forward, backward = short_attention_kernel.forward, short_attention_kernel.backward
    if request.param == "gpu":

        def on_gpu(qkv: Tensor, grad: Tensor, heads: int) -> Passes:
            qkv, grad = qkv.cuda(), grad.cuda()
            return forward(qkv, heads).cpu(), backward(grad, qkv, heads).cpu()

        yield Kernel(on_gpu, (torch.float16, torch.bfloat16))
        return

    def interpreted(qkv: Tensor, grad: Tensor, heads: int) -> Passes:
        passes = pool.submit(forward, qkv, heads), pool.submit(backward, grad, qkv, heads)
        return passes[0].result(), passes[1].result()

    with interpreting() as pool:
        yield Kernel(interpreted, (torch.float16, torch.float32))  # it knows no bfloat16


def drawn(n: int, tokens: int, heads: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Rows whose logits differ by several units, and a gradient, in float64."""
    generator = torch.Generator().manual_seed(tokens)
    channels = heads * head_width
    qkv = torch.randn(n, tokens, 3 * channels, generator=generator, dtype=torch.float64)
    grad = torch.randn(n, tokens, channels, generator=generator, dtype=torch.float64)
    return 1.5 * qkv, grad


def of_torch(qkv_NLC: Tensor, grad_NLD: Tensor, heads: int) -> Passes:
    """The same by scaled_dot_product_attention."""
    qkv = qkv_NLC.clone().requires_grad_()
    n, tokens, _ = qkv.shape
    q, k, v = qkv.view(n, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, -1)
    torch.autograd.backward(out, grad_NLD)
    assert qkv.grad is not None
    return out.detach(), qkv.grad


@pytest.mark.parametrize("tokens", [1, 13, 33, 128])
def test_the_definition_is_torchs_attention(tokens: int) -> None:
    qkv, grad = drawn(3, tokens, 2, 16)
    out, of_qkv = of_torch(qkv, grad, 2)
    torch.testing.assert_close(definition(qkv, 2), out)
    torch.testing.assert_close(definition_backward(grad, qkv, 2), of_qkv)


def test_its_gradient_is_that_of_finite_differences() -> None:
    qkv = drawn(2, 5, 2, 4)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: short_attention.short_attention(x, 2), qkv)


def test_the_op_keeps_the_rules_of_custom_ops() -> None:
    qkv = drawn(2, 7, 2, 16)[0].float().requires_grad_()
    op = torch.ops.accelssl.short_attention.default
    for arguments in ((qkv, 2), (qkv[:, ::2], 2)):
        torch.library.opcheck(op, arguments)
    backward = torch.ops.accelssl.short_attention_backward.default
    torch.library.opcheck(backward, (torch.ones(2, 7, 32), qkv.detach(), 2))


@pytest.mark.parametrize(
    ("tokens", "head_width"),
    [(1, 16), (13, 64), (16, 32), (33, 64), (57, 64), (64, 64), (113, 32)]
    + [(tokens, 64) for tokens in (65, 66, 80, 81, 97, 113, 128)],
)
def test_the_kernel_errs_at_most_twice_as_much_as_torch_does(
    kernel: Kernel, tokens: int, head_width: int
) -> None:
    for dtype in kernel.dtypes:
        qkv, grad = (x.to(dtype) for x in drawn(2, tokens, 2, head_width))
        right = of_torch(qkv.double(), grad.double(), 2)
        ordinary = of_torch(qkv, grad, 2)
        passes = kernel.run(qkv, grad, 2)
        assert [x.dtype for x in passes] == [dtype, dtype]
        for ours, torchs, exact in zip(passes, ordinary, right, strict=True):
            assert ours.shape == exact.shape
            floor = 4 * torch.finfo(dtype).eps * exact.abs().max()
            assert (ours - exact).abs().max() <= 2 * (torchs - exact).abs().max() + floor


@pytest.mark.parametrize(("tokens", "width"), [(9, 16), (70, 64)])
def test_no_view_or_head_sees_another(kernel: Kernel, tokens: int, width: int) -> None:
    qkv, grad = (x.to(kernel.dtypes[0]) for x in drawn(2, tokens, 2, width))
    before = kernel.run(qkv, grad, 2)
    other = qkv.view(2, tokens, 3, 2, width).clone()
    other[1, :, :, 1] = 7.0
    after = kernel.run(other.view_as(qkv), grad, 2)
    for a, b, parts in zip(before, after, (1, 3), strict=True):
        a, b = (x.reshape(2, -1, parts, 2, width) for x in (a, b))
        assert torch.equal(a[0], b[0]) and torch.equal(a[1, :, :, 0], b[1, :, :, 0])
        assert not torch.equal(a[1, :, :, 1], b[1, :, :, 1])


def test_too_many_tokens_and_odd_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="129"):
        short_attention.short_attention(torch.zeros(1, MOST_TOKENS + 1, 96), 2)
    with pytest.raises(ValueError, match="95"):
        short_attention.short_attention(torch.zeros(1, 4, 95), 2)


def test_it_fits_short_lengths_in_half_precision_on_a_gpu_alone() -> None:
    gpu, bf16 = torch.device("cuda", 0), torch.bfloat16
    assert fits(57, 64, gpu, bf16)
    assert not fits(226, 64, gpu, bf16) and not fits(57, 80, gpu, bf16)
    assert not fits(57, 64, torch.device("cpu"), bf16) and not fits(57, 64, gpu, torch.float32)
