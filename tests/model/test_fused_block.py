from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch._functorch._aot_autograd.utils import make_boxed_func

from accelssl.model import fused_block as module
from accelssl.model import residual as branch_module
from accelssl.model.fused_block import every_row, no_branch
from accelssl.model.ops.short_attention import fits
from accelssl.model.residual import Branch, summed
from accelssl.switches import KERNELS, TORCH

WIDTH = 192
VARIANTS: list[dict[str, Any]] = [
    {},
    {"init_values": 0.5},
    {"qkv_bias": False},
    {"proj_bias": False},
]


def blocks(**options: Any) -> list[nn.Module]:
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=3, **options)
    return list(vit.double().train().get_submodule("blocks").children())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def passed(block: Callable[[Tensor], Tensor], modules: nn.Module) -> list[Tensor]:
    """Values of a block and its gradients, by the input and by all weights."""
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, generator=seeded())
    x.requires_grad_()
    y = block(x)
    torch.autograd.backward(y.square().sum())
    gradients = [x.grad, *(weight.grad for weight in modules.parameters())]
    modules.zero_grad(set_to_none=True)
    return [y, *(g for g in gradients if g is not None)]


def of_halves(block: nn.Module, x: Tensor) -> Tensor:
    """What it does to x, given in two halves, which are exact, and with nothing left to add."""
    return summed(*every_row(block, x / 2, Branch(x / 2)))


def chained(modules: nn.ModuleList, x: Tensor) -> Tensor:
    """What they do to x one after the other, sums being left to the next."""
    branch = no_branch(modules[0], x)
    for block in modules:
        x, branch = every_row(block, x, branch)
    return summed(x, branch)


def in_turn(modules: nn.ModuleList, x: Tensor) -> Tensor:
    for block in modules:
        x = block(x)
    return x


def in_float32(run: Callable[..., Tensor], modules: nn.ModuleList) -> list[Tensor]:
    return passed(lambda x: run(modules, x.float()), modules)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's own ops at any length, precision and device: by definition, on a CPU."""
    monkeypatch.setattr(module, "fits", lambda *_: True)
    monkeypatch.setattr(module, "gelu_fits", lambda *_: True)
    monkeypatch.setattr(branch_module, "fits", lambda *_: True)


@pytest.mark.parametrize("options", VARIANTS)
def test_its_values_and_gradients_are_the_blocks(anywhere: None, options: dict[str, Any]) -> None:
    block = blocks(**options)[1]
    whole = passed(block, block)
    ours = passed(lambda x: of_halves(block, x), block)
    assert len(ours) == len(whole)
    torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("run", [chained, in_turn])
def test_compiled_it_sums_no_rows_for_biases_but_that_of_attention(
    anywhere: None, run: Callable[..., Tensor]
) -> None:
    """But the blocks do, and for the last branch who adds it: or this would not see it."""
    of_rows: list[tuple[int, ...]] = []

    def forward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        boxed: Callable[..., Any] = make_boxed_func(graph.forward)
        return boxed

    def backward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        sums = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
        of_rows.extend(tuple(node.args[0].meta["val"].shape) for node in sums)
        return forward(graph, inputs)

    two = nn.ModuleList(blocks()[:2]).float()
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.compile(run, backend=backend)(two, torch.randn(2, 6, WIDTH, requires_grad=True))
    torch.autograd.backward(y.square().sum())
    times = Counter(shape[-1] for shape in of_rows if prod(shape[:-1]) == 12)
    ours, theirs = {3: 2, 1: 1}, {4: 2, 3: 2, 1: 4}
    assert times == {k * WIDTH: n for k, n in (ours if run is chained else theirs).items()}


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"attn_drop_rate": 0.1}])
def test_what_is_not_plain_attention_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "fits", lambda *_: True)
    block = blocks(**options)[1]
    torch.manual_seed(2)
    whole = passed(block, block)
    torch.manual_seed(2)
    assert all(map(torch.equal, passed(lambda x: of_halves(block, x), block), whole))


def test_what_is_not_plain_gelu_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gelu_fits", lambda *_: True)
    for act in (partial(nn.GELU, approximate="tanh"), nn.SiLU):
        block = blocks(act_layer=act)[1]
        whole = passed(block, block)
        ours = passed(partial(of_halves, block), block)
        assert all(map(torch.equal, ours, whole))


def test_gelu_stands_without_short_attention_and_before_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "gelu_fits", lambda *_: True)
    block = blocks(proj_drop_rate=0.3)[1]
    torch.manual_seed(2)
    whole = passed(block, block)
    torch.manual_seed(2)
    torch.testing.assert_close(passed(lambda x: of_halves(block, x), block), whole)


def assert_errs_at_most_twice_as_much(
    ours: list[Tensor], usual: list[Tensor], exact: list[Tensor]
) -> None:
    for mine, torchs, right in zip(ours, usual, exact, strict=True):
        assert mine.dtype == torchs.dtype
        assert (mine - right).norm() <= 2 * (torchs - right).norm()


def test_under_autocast_it_errs_at_most_twice_as_much_as_the_block(anywhere: None) -> None:
    block = blocks()[1]
    exact = passed(block, block)
    block.float()

    def rounded(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return passed(lambda x: run(x.float()), block)

    ours, usual = rounded(lambda x: of_halves(block, x)), rounded(block)
    assert_errs_at_most_twice_as_much(ours, usual, exact)


def test_it_trains_as_the_blocks_do(anywhere: None) -> None:
    def losses(run: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        trained = nn.ModuleList(blocks()[:2])
        optimizer = torch.optim.AdamW(trained.parameters(), 1e-3)
        x, target = torch.randn(2, 4, 6, WIDTH, dtype=torch.float64, generator=seeded())
        noted = []
        for _ in range(8):
            y = x
            for block in trained:
                y = run(block, y)
            loss = (y - target).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            noted.append(loss.detach())
        return torch.stack(noted)

    plain = losses(lambda block, x: block(x))
    assert plain[-1] < 0.7 * plain[0]
    torch.testing.assert_close(losses(of_halves), plain)


@pytest.mark.parametrize("wants_gradient", [True, False])
@pytest.mark.parametrize("is_bf16", [True, False])
@pytest.mark.parametrize("options", [{}, {"init_values": 0.5}, {"block_fn": ParallelScalingBlock}])
def test_one_compilation_serves_all_blocks(
    anywhere: None, options: dict[str, Any], is_bf16: bool, wants_gradient: bool
) -> None:
    """The first too, before which nothing was left to add."""
    torch._dynamo.reset()
    programs = CompileCounter()
    run = torch.compile(every_row, dynamic=False, backend=programs)
    modules = nn.ModuleList(blocks(**options)).float()
    x = torch.randn(2, 6, WIDTH, requires_grad=wants_gradient) * 1
    with (
        torch.set_grad_enabled(wants_gradient),
        torch.autocast("cpu", torch.bfloat16, enabled=is_bf16),
    ):
        branch = no_branch(modules[0], x)
        for block in modules:
            x, branch = run(block, x, branch)
    assert programs.frame_count == 1


@pytest.mark.parametrize("is_bf16", [True, False])
@pytest.mark.parametrize("options", [{}, {"init_values": 0.5}, {"block_fn": ParallelScalingBlock}])
def test_sums_left_to_the_next_block_are_the_same_bits(
    options: dict[str, Any], is_bf16: bool
) -> None:
    modules = nn.ModuleList(blocks(**options)).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        ours, whole = in_float32(chained, modules), in_float32(in_turn, modules)
    assert len(ours) == len(whole)
    assert all(map(torch.equal, ours, whole))


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("options", [*VARIANTS, {"qk_norm": True}, {"scale_attn_norm": True}])
def test_biases_left_to_be_added_get_their_gradients(
    anywhere: None, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_short: bool
) -> None:
    """With torch's attention too."""
    monkeypatch.setattr(module, "fits", lambda *_: is_short)
    modules = nn.ModuleList(blocks(**options))
    whole = passed(partial(in_turn, modules), modules)
    ours = passed(partial(chained, modules), modules)
    assert len(ours) == len(whole)
    torch.testing.assert_close(ours, whole)


def test_compiled_block_by_block_biases_get_their_gradients(
    anywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = nn.ModuleList(blocks())
    whole = passed(partial(in_turn, modules), modules)
    run = torch.compile(every_row, dynamic=False, backend="aot_eager")
    monkeypatch.setitem(globals(), "every_row", run)
    torch.testing.assert_close(passed(partial(chained, modules), modules), whole)


def test_a_depth_drop_comes_before_the_sum(anywhere: None) -> None:
    modules = nn.ModuleList(blocks(drop_path_rate=0.5))
    torch.manual_seed(2)
    whole = passed(partial(in_turn, modules), modules)
    torch.manual_seed(2)
    torch.testing.assert_close(passed(partial(chained, modules), modules), whole)


def test_under_autocast_chained_blocks_err_at_most_twice_as_much(anywhere: None) -> None:
    modules = nn.ModuleList(blocks())
    exact = passed(partial(in_turn, modules), modules)
    modules.float()
    with torch.autocast("cpu", torch.bfloat16):
        ours, usual = in_float32(chained, modules), in_float32(in_turn, modules)
    assert_errs_at_most_twice_as_much(ours, usual, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("is_compiled", [False, True])
def test_on_a_gpu_chained_blocks_err_at_most_twice_as_much(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    modules = nn.ModuleList(blocks()).cuda()
    exact = passed(lambda x: in_turn(modules, x.cuda()), modules)
    modules.float()
    if is_compiled:
        monkeypatch.setitem(globals(), "every_row", torch.compile(every_row, dynamic=False))
    with torch.autocast("cuda", torch.bfloat16):
        assert no_branch(modules[0], torch.zeros(2, 6, WIDTH, device="cuda")).bias_D is not None
        ours = passed(lambda x: chained(modules, x.cuda().float()), modules)
        usual = passed(lambda x: in_turn(modules, x.cuda().float()), modules)
    assert_errs_at_most_twice_as_much(ours, usual, exact)


def test_biases_are_left_where_nothing_comes_before_the_sum(anywhere: None) -> None:
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    plain, scaled, dropped, unbiased = (
        blocks(**options)[1]
        for options in (
            {},
            {"init_values": 0.5},
            {"proj_drop_rate": 0.3},
            {"proj_bias": False},
        )
    )
    left = every_row(plain, x, no_branch(plain, x))[1].bias_D
    assert left is plain.get_parameter("mlp.fc2.bias")
    for block in (scaled, dropped, unbiased):
        assert every_row(block, x, no_branch(block, x))[1].bias_D is None


def test_norms_that_add_norm_is_not_run_as_they_are(anywhere: None) -> None:
    for norm in (partial(nn.LayerNorm, elementwise_affine=False), nn.RMSNorm):
        modules = nn.ModuleList(blocks(norm_layer=norm)[:2])
        whole = passed(partial(in_turn, modules), modules)
        torch.testing.assert_close(passed(partial(chained, modules), modules), whole)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 33, 64, torch.device("cuda", 0), torch.bfloat16
    assert fits(*asked)
    monkeypatch.setenv(KERNELS, TORCH)
    assert not fits(*asked)
