"""GELU against its formula in float64; without a GPU the kernel in Triton's interpreter."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelssl.model.ops.gelu import definition, definition_backward, fits, gelu

pytest.importorskip("triton")

from accelssl.model.ops import gelu_kernel
from accelssl.switches import KERNELS, TORCH
from tests.machine_code import compiled
from tests.model.interpreter import interpreting

Run = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Both passes of the kernel: from h and grad to a, the gradient by h and its sums."""
    forward, backward = gelu_kernel.forward, gelu_kernel.backward
    if request.param == "gpu":

        def on_gpu(h: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h, grad = h.cuda(), grad.cuda()
            of_h, sums = backward(grad, h)
            return forward(h).cpu(), of_h.cpu(), sums.cpu()

        yield on_gpu
        return

    def interpreted(h: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = h.dtype
        if dtype == torch.bfloat16:  # which the interpreter cuts off instead of rounding
            h, grad = h.float(), grad.float()
        passes = pool.submit(forward, h), pool.submit(backward, grad, h)
        of_h, sums = passes[1].result()
        return passes[0].result().to(dtype), of_h.to(dtype), sums

    with interpreting() as pool:
        yield interpreted


def exact(h: Tensor) -> tuple[Tensor, Tensor]:
    """GELU and its slope in float64. Torch's own takes its tail from 1 + erf, which cancels."""
    h = h.double()
    below = torch.special.ndtr(h)
    density = torch.exp(-h * h / 2) / (2 * torch.pi) ** 0.5
    return h * below, below + h * density


def all_values(dtype: torch.dtype) -> Tensor:
    """Every finite number of 16 bits, as 64 columns."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    return values[values.isfinite()].reshape(-1, 64)


def spacing(right: Tensor, dtype: torch.dtype) -> Tensor:
    """That of the numbers of a dtype around a right answer."""
    smallest = torch.finfo(dtype).smallest_normal
    return 2.0 ** right.abs().clamp_min(smallest).log2().floor() * torch.finfo(dtype).eps


def drawn(rows: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    h, grad = torch.randn(2, rows, width, generator=generator, dtype=torch.float64)
    return (2 * h).to(dtype), grad.to(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_becomes_what_rounding_the_right_answer_gives_or_nearly(
    kernel: Run, dtype: torch.dtype
) -> None:
    h = all_values(dtype)
    a, slope, _ = kernel(h, torch.ones_like(h))
    for ours, right, tolerance in zip((a, slope), exact(h), (1e-14, 1e-6), strict=True):
        assert ours.dtype == dtype and ours.shape == h.shape
        # Rounding is wrong by half a spacing; tails are as precise as the rest up to 8.
        assert ((ours - right).abs() <= 0.6 * spacing(right, dtype) + tolerance).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_it_errs_at_most_twice_as_much_as_torch_does(kernel: Run, dtype: torch.dtype) -> None:
    h = all_values(dtype)
    a, slope, _ = kernel(h, torch.ones_like(h))
    torchs = F.gelu(h), torch.ops.aten.gelu_backward(torch.ones_like(h), h)
    for ours, torchs_own, right in zip((a, slope), torchs, exact(h), strict=True):
        for least, most in [(0, 0.5), (0.5, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 8)]:
            here = (h.abs() >= least) & (h.abs() < most)
            error, usual = ((x - right)[here].abs().max() for x in (ours, torchs_own))
            assert error <= 2 * usual


def test_nan_and_infinity_pass_as_in_torch(kernel: Run) -> None:
    h = torch.tensor([[torch.nan, torch.inf] * 8], dtype=torch.bfloat16)
    a, slope, sums = kernel(h, torch.ones_like(h))
    for x in (a, slope, sums):
        assert x.view(-1, 2)[:, 0].isnan().all()
    assert (a[0, 1::2] == torch.inf).all() and (slope[0, 1::2] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 8), (1, 1), (3, 24), (127, 7), (129, 256), (300, 264), (8, 2048)]
)
def test_gradients_and_their_sums_are_the_formulas_at_odd_shapes(
    kernel: Run, rows: int, width: int, dtype: torch.dtype
) -> None:
    h, grad = drawn(rows, width, dtype)
    a, of_h, sums = kernel(h, grad)
    right, slope = exact(h)
    right_of_h = grad.double() * slope
    rounding = torch.finfo(dtype).eps
    assert ((a - right).abs() <= rounding * right.abs() + 1e-6).all()
    assert ((of_h - right_of_h).abs() <= rounding * right_of_h.abs() + 3e-6).all()
    assert sums.dtype == torch.float32
    assert ((sums - right_of_h.sum(0)).abs() <= 2e-6 * grad.double().abs().sum(0)).all()


def test_nothing_in_gives_nothing_and_sums_of_zero(kernel: Run) -> None:
    for shape in [(0, 8), (3, 0)]:
        empty = torch.zeros(shape, dtype=torch.bfloat16)
        a, of_h, sums = kernel(empty, empty)
        assert a.shape == of_h.shape == shape and torch.equal(sums, torch.zeros(shape[1]))


def test_the_definition_is_torchs_gelu() -> None:
    h, grad = drawn(6, 5)
    h.requires_grad_()
    right = F.gelu(h)
    torch.autograd.backward(right, grad)
    of_h, sums = definition_backward(grad, h.detach())
    assert h.grad is not None
    torch.testing.assert_close(definition(h), right)
    torch.testing.assert_close(of_h, h.grad)
    torch.testing.assert_close(sums, h.grad.sum(0))


def test_its_gradients_are_those_of_finite_differences_where_the_bias_was_added() -> None:
    h, _ = drawn(4, 3)
    bias = torch.linspace(-1, 1, 3, dtype=torch.float64)

    def activated(h: Tensor, bias: Tensor) -> Tensor:
        return gelu(h.view(2, 2, 3) + bias.detach(), bias)

    assert torch.autograd.gradcheck(activated, (h.requires_grad_(), bias.requires_grad_()))


def test_the_op_keeps_the_rules_of_custom_ops() -> None:
    h, grad = drawn(6, 4, torch.float32)
    bias = torch.zeros(4, requires_grad=True)
    op = torch.ops.accelssl.gelu.default
    torch.library.opcheck(op, (h.clone().requires_grad_(), bias))
    torch.library.opcheck(op, (h.view(2, 3, 4)[:, ::2].requires_grad_(), bias))
    torch.library.opcheck(op, (h.T.bfloat16().requires_grad_(), torch.zeros(6)))
    torch.library.opcheck(torch.ops.accelssl.gelu_backward.default, (grad, h))
    torch.library.opcheck(torch.ops.accelssl.gelu_backward.default, (grad.T, h.T))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_gets_its_gradient_in_its_own_dtype(dtype: torch.dtype, is_compiled: bool) -> None:
    h, grad = drawn(64, 4, torch.bfloat16)
    bias = torch.zeros(4, dtype=dtype, requires_grad=True)
    run = torch.compile(gelu, backend="aot_eager") if is_compiled else gelu
    torch.autograd.backward(run(h, bias), grad)
    assert bias.grad is not None and bias.grad.dtype == dtype
    right = (grad.double() * exact(h)[1]).sum(0).to(dtype)
    torch.testing.assert_close(bias.grad, right, rtol=1e-5, atol=1e-5)


def test_a_bias_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="one number for each column"):
        gelu(torch.zeros(2, 4), torch.zeros(3))


def test_it_fits_half_precision_on_a_gpu_with_room_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, a_hundredth = torch.device("cuda", 0), 800
    properties = SimpleNamespace(total_memory=100 * a_hundredth)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert fits(400, gpu, torch.bfloat16) and fits(400, gpu, torch.float16)
    assert not fits(401, gpu, torch.bfloat16) and not fits(400, gpu, torch.float32)
    assert not fits(400, torch.device("cpu"), torch.bfloat16)
    monkeypatch.setenv(KERNELS, TORCH)
    assert not fits(400, gpu, torch.bfloat16)


@pytest.mark.gpu
def test_whether_it_fits_is_known_while_a_graph_is_made() -> None:
    @torch.compile(fullgraph=True, dynamic=False)
    def asked(h: Tensor) -> Tensor:
        return h + fits(h.numel(), h.device, h.dtype)

    assert asked(torch.zeros(8, device="cuda", dtype=torch.bfloat16)).eq(1).all()


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_it_compiles_to_moves_of_16_bytes(architecture: int) -> None:
    launches = gelu_kernel.gelu_forward, gelu_kernel.gelu_backward
    sizes = gelu_kernel.FORWARD_SIZES, gelu_kernel.BACKWARD_SIZES
    moves = "ld.global.v4.b32", "cp.async.cg.shared.global"
    numbers = ("count", "rows", "width")
    types = dict.fromkeys(numbers, "i32") | {"sums_ptr": "*fp32"}
    for function, constants, load in zip(launches, sizes, moves, strict=True):
        told = constants | {"num_warps": gelu_kernel.WARPS}
        ptx = compiled(function, told, architecture, types, numbers).asm["ptx"]
        assert load in ptx
        assert "st.global.v4.b32" in ptx
