"""Sum and norm against torch's in float64; without a GPU the kernel in Triton's interpreter."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor

from accelssl.model.ops.add_norm import add_norm, definition, definition_backward, fits

pytest.importorskip("triton")
import triton

from accelssl.model.ops import add_norm_kernel, column_sums
from accelssl.switches import KERNELS, TORCH
from tests.machine_code import compiled
from tests.model.interpreter import interpreting

EPS = 1e-6
HALVES = (torch.bfloat16, torch.float16)


class Inputs(NamedTuple):
    """Of both passes: the last two are gradients by the results."""

    x: Tensor
    branch: Tensor
    branch_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    of_sum: Tensor
    of_normed: Tensor

    def to(self, place: torch.dtype | str) -> Self:
        return type(self)(*(None if x is None else x.to(place) for x in self))  # type: ignore[arg-type]


Results = tuple[Tensor, ...]
NAMES = "sum", "normed", "of_x", "of_branch", "of_weight", "of_bias", "of_branch_bias"
Run = Callable[[Inputs], Results]


def called(function: Callable[..., Results], *arguments: Any) -> Results:
    return function(*arguments)


def both_passes(inputs: Inputs, call: Callable[..., Results] = called) -> Results:
    """Of the kernel. `call` calls its functions: another process knows those, but no test's."""
    total, normed, stats = call(add_norm_kernel.forward, *inputs[:5], EPS)
    backward = inputs.of_sum, inputs.of_normed, total, stats, inputs.weight
    of_x, of_branch, sums = call(add_norm_kernel.backward, *backward)
    return total, normed, of_x, of_branch, *sums.unbind(0)


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Iterator[Run]:
    if request.param == "gpu":

        def on_gpu(inputs: Inputs) -> Results:
            return tuple(x.cpu() for x in both_passes(inputs.to("cuda")))

        yield on_gpu
        return

    def interpreted(inputs: Inputs) -> Results:
        half = inputs.branch.dtype
        if half == torch.bfloat16:  # which the interpreter cuts off instead of rounding
            inputs = inputs.to(torch.float32)
        total, normed, of_x, of_branch, *sums = both_passes(
            inputs, lambda function, *arguments: pool.submit(function, *arguments).result()
        )
        return total, normed.to(half), of_x, of_branch.to(half), *sums

    if Version(np.__version__) >= Version("2.4") and Version(triton.__version__) < Version("3.8"):
        pytest.skip("Triton interprets no loop of a variable length with this NumPy")
    with interpreting() as pool:
        yield interpreted


def torchs(inputs: Inputs) -> Results:
    """The same by torch's own layer norm and autograd, at the inputs' precision."""
    by = [None if x is None else x.detach().clone().requires_grad_() for x in inputs[:5]]
    x, branch, branch_bias, weight, bias = by
    assert x is not None and branch is not None
    total = x + (branch if branch_bias is None else branch + branch_bias)
    normed = F.layer_norm(total, total.shape[-1:], weight, bias, EPS).to(branch.dtype)
    torch.autograd.backward([total, normed], inputs[5:])
    of_x, of_branch, of_branch_bias, *of_norm = (
        torch.empty(0) if x is None or x.grad is None else x.grad for x in by
    )
    return total.detach(), normed.detach(), of_x, of_branch, *of_norm, of_branch_bias


def drawn(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    """As in training: half precision where that is, the others in float32."""
    generator = torch.Generator().manual_seed(rows)
    x, branch, of_sum, of_normed = torch.randn(4, rows, width, generator=generator)
    branch_bias, weight, bias = torch.randn(3, width, generator=generator)
    half = branch.to(dtype), of_normed.to(dtype)
    return Inputs(x + 0.5, half[0], branch_bias, weight, bias, of_sum, half[1])


def assert_errs_at_most_twice_as_much(inputs: Inputs, ours: Results) -> None:
    exact, usual = torchs(inputs.to(torch.float64)), torchs(inputs)
    for name, mine, torchs_own, right in zip(NAMES, ours, usual, exact, strict=True):
        if not right.numel():  # no branch bias, no gradient of it
            continue
        assert mine.dtype == torchs_own.dtype and mine.shape == right.shape, name
        error, usual_error = ((x - right).norm() for x in (mine, torchs_own))
        assert error <= 2 * usual_error + 1e-6 * right.norm(), name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("rows", "width"),
    [(1, 8), (1, 1), (3, 24), (127, 7), (64, 192), (13, 384), (26, 768), (9, 1280), (3, 2048)],
)
def test_it_errs_at_most_twice_as_much_as_torch_does(
    kernel: Run, rows: int, width: int, dtype: torch.dtype
) -> None:
    """At odd shapes too, and with rows for several tiles of every program."""
    inputs = drawn(rows, width, dtype)
    assert_errs_at_most_twice_as_much(inputs, kernel(inputs))


def test_it_does_without_a_branch_bias(kernel: Run) -> None:
    inputs = drawn(7, 24)._replace(branch_bias=None)
    assert_errs_at_most_twice_as_much(inputs, kernel(inputs))


def test_a_mean_far_above_the_deviation_costs_no_precision(kernel: Run) -> None:
    inputs = drawn(6, 768)._replace(branch_bias=None)
    inputs.x.mul_(0.01).add_(100)
    inputs.branch.zero_()
    assert_errs_at_most_twice_as_much(inputs, kernel(inputs))
    normed = kernel(inputs)[1]
    right = torchs(inputs.to(torch.float64))[1]
    assert (normed - right).abs().max() < 0.03  # a squared mean would take all of the variance


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other(kernel: Run, value: float) -> None:
    inputs = drawn(5, 24)
    inputs.x[2, 3] = value
    total, normed, of_x, of_branch, *sums = kernel(inputs)
    for x in (normed, of_x, of_branch):
        assert x[2].isnan().all() and x[[0, 1, 3, 4]].isfinite().all()
    assert torch.equal(total.isfinite(), inputs.x.isfinite())
    assert sums[0].isnan().all() and sums[2].isnan().all() and sums[1].isfinite().all()


def test_a_constant_row_is_the_bias_and_has_finite_gradients(kernel: Run) -> None:
    inputs = drawn(3, 24)._replace(branch_bias=None, x=torch.ones(3, 24))
    inputs.branch.zero_()
    ours = kernel(inputs)
    torch.testing.assert_close(ours[1], inputs.bias.to(torch.bfloat16).expand(3, 24))
    assert all(gradient.isfinite().all() for gradient in ours)


def test_nothing_in_gives_nothing_and_sums_of_zero(kernel: Run) -> None:
    for rows, width in [(0, 8), (3, 0)]:
        total, normed, of_x, of_branch, *sums = kernel(drawn(rows, width))
        for x in (total, normed, of_x, of_branch):
            assert x.shape == (rows, width)
        assert all(torch.equal(x, torch.zeros(width)) for x in sums)


@pytest.mark.gpu
def test_replayed_as_a_graph_it_gives_the_same_bits() -> None:
    inputs = drawn(3000, 768).to("cuda")
    once, graph = both_passes(inputs), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = both_passes(inputs)
    graph.replay()
    assert all(map(torch.equal, replayed, once))


@pytest.mark.gpu
def test_rows_beyond_two_to_the_31_values_are_found() -> None:
    if torch.cuda.mem_get_info()[1] < 48e9:
        pytest.skip("takes 40 GB of a GPU")
    rows, width = 2**31 // 2048 + 5, 2048
    ones = torch.ones(width, device="cuda")
    x = torch.zeros(rows, width, device="cuda")
    half = torch.zeros(rows, width, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.linspace(-1, 1, width, device="cuda")
    total, normed, stats = add_norm_kernel.forward(x, half, None, ones, ones, EPS)
    right = F.layer_norm(x[-1], (width,), ones, ones, EPS)
    assert torch.equal(total[-1], x[-1])
    torch.testing.assert_close(normed[-1].float(), right, rtol=1e-2, atol=1e-2)
    x.fill_(1.0)  # as gradient of the sum, which passes where normed has none
    of_x, of_branch, sums = add_norm_kernel.backward(x, half, total, stats, ones)
    assert (of_x[-5:] == 1).all() and (of_branch[-5:] == 1).all()
    assert (sums[2] == rows).all() and (sums[:2] == 0).all()


def test_the_definition_is_torchs_layer_norm_of_the_sum() -> None:
    inputs = drawn(6, 5).to(torch.float64)
    total, normed, stats = definition(*inputs[:5], EPS)
    backward = inputs.of_sum, inputs.of_normed, total, stats, inputs.weight
    of_x, of_branch, sums = definition_backward(*backward)
    ours = total, normed, of_x, of_branch, *sums.unbind(0)
    torch.testing.assert_close(ours, torchs(inputs))


@pytest.mark.parametrize("has_branch_bias", [True, False])
def test_its_gradients_are_those_of_finite_differences(has_branch_bias: bool) -> None:
    x, branch, branch_bias, weight, bias, *_ = drawn(6, 3).to(torch.float64)
    by = [x, branch, weight, bias, branch_bias][: 4 + has_branch_bias]

    def run(x: Tensor, branch: Tensor, *of_columns: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, *branch_bias = of_columns
        x, branch = x.view(2, 3, 3), branch.view(2, 3, 3)
        return add_norm(x, branch, branch_bias[0] if branch_bias else None, weight, bias, EPS)

    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in by if x is not None])


def test_the_op_keeps_the_rules_of_custom_ops() -> None:
    x, branch, branch_bias, weight, bias, of_sum, of_normed = drawn(6, 6)
    op, backward = torch.ops.accelssl.add_norm.default, torch.ops.accelssl.add_norm_backward.default
    leaves = [x.clone().requires_grad_() for x in (x, branch, bias, weight, bias)]
    torch.library.opcheck(op, (*leaves, EPS))
    torch.library.opcheck(op, (*leaves[:2], None, *leaves[3:], EPS))
    torch.library.opcheck(op, (leaves[0].T, leaves[1].T, *leaves[2:], EPS))
    total, _, stats = op(x, branch, branch_bias, weight, bias, EPS)
    torch.library.opcheck(backward, (of_sum, of_normed, total, stats, weight))
    torch.library.opcheck(backward, (of_sum.T, of_normed.T, total, stats, weight))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_get_gradients_in_their_own_dtype(dtype: torch.dtype, is_compiled: bool) -> None:
    inputs = drawn(64, 6)
    branch_bias, weight, bias = (
        x.to(dtype).requires_grad_() for x in (inputs.bias + 1, inputs.weight, inputs.bias)
    )
    run = torch.compile(add_norm, backend="aot_eager", fullgraph=True) if is_compiled else add_norm
    results = run(inputs.x, inputs.branch, branch_bias, weight, bias, EPS)
    torch.autograd.backward(results, inputs[5:])
    rounded = inputs._replace(branch_bias=branch_bias, weight=weight, bias=bias)
    rights = torchs(rounded.to(torch.float64))[4:]
    for leaf, right in zip((weight, bias, branch_bias), rights, strict=True):
        assert leaf.grad is not None and leaf.grad.dtype == dtype
        torch.testing.assert_close(leaf.grad, right.to(dtype), rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_match_are_refused() -> None:
    x, row = torch.zeros(2, 4), torch.zeros(4)
    with pytest.raises(ValueError, match="need one shape"):
        add_norm(x, torch.zeros(2, 3), None, row, row, EPS)
    with pytest.raises(ValueError, match=r"the branch bias is .* one number for each column"):
        add_norm(x, x, torch.zeros(3), row, row, EPS)
    with pytest.raises(ValueError, match=r"the weight is .* one number for each column"):
        add_norm(x, x, None, torch.zeros(3), row, EPS)


def test_it_fits_a_float32_stream_and_half_products_on_a_gpu_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, single = torch.device("cuda", 0), torch.float32
    for width in (192, 384, 768, 1024, 1280):
        assert all(fits(width, gpu, single, half) for half in HALVES)
    assert not fits(768, torch.device("cpu"), single, torch.bfloat16)
    assert not fits(768, gpu, single, single) and not fits(768, gpu, *[torch.bfloat16] * 2)
    for width in (100, 4096):
        assert not fits(width, gpu, single, torch.bfloat16)
    monkeypatch.setenv(KERNELS, TORCH)
    assert not fits(768, gpu, single, torch.bfloat16)


@pytest.mark.parametrize("width", [192, 384, 768, 1280])
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_it_compiles_to_moves_of_16_bytes(architecture: int, width: int) -> None:
    own = {"WIDTH": width, "BLOCK": triton.next_power_of_2(width)}
    forward = own | add_norm_kernel.FORWARD_SIZES | {"HAS_BRANCH_BIAS": True}
    backward = own | add_norm_kernel.BACKWARD_SIZES
    values = add_norm_kernel.FORWARD_VALUES, add_norm_kernel.BACKWARD_VALUES
    of_forward, of_backward = (add_norm_kernel.warps_of(width, each) for each in values)
    launches = (
        (add_norm_kernel.add_norm_forward, forward, of_forward),
        (add_norm_kernel.add_norm_backward, backward, of_backward),
        (column_sums.sum_columns, column_sums.SIZES | {"NAME": "sums"}, column_sums.WARPS),
    )
    halves = {"branch_ptr", "normed_ptr", "of_normed_ptr", "of_branch_ptr"}
    numbers = {**dict.fromkeys(("rows", "groups", "width"), "i32"), "eps": "fp32"}
    for function, constants, warps in launches:
        types = numbers | dict.fromkeys(set(function.arg_names) - halves - set(numbers), "*fp32")
        ptx = compiled(function, constants | {"num_warps": warps}, architecture, types).asm["ptx"]
        assert "cp.async.cg.shared.global" in ptx
        assert "st.global.v4.b32" in ptx or function is column_sums.sum_columns
        assert "st.global.b16" not in ptx
