from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch._functorch._aot_autograd.utils import make_boxed_func

from accelssl.model import every_row as module
from accelssl.model.every_row import every_row, no_branch
from accelssl.model.short_attention import SWITCH, fits

WIDTH = 192


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
    x, branch = every_row(block, x / 2, x / 2)
    return x + branch


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short attention and gelu at any length, precision and device: by definition, on a CPU."""
    monkeypatch.setattr(module, "fits", lambda *_: True)
    monkeypatch.setattr(module, "gelu_fits", lambda *_: True)


@pytest.mark.parametrize(
    "options", [{}, {"init_values": 0.5}, {"qkv_bias": False}, {"proj_bias": False}]
)
def test_its_values_and_gradients_are_the_blocks(anywhere: None, options: dict[str, Any]) -> None:
    block = blocks(**options)[1]
    whole = passed(block, block)
    ours = passed(lambda x: of_halves(block, x), block)
    assert len(ours) == len(whole)
    torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("run", [of_halves, lambda block, x: block(x)], ids=["ours", "blocks"])
def test_compiled_it_sums_no_rows_for_the_bias_before_gelu(
    anywhere: None, run: Callable[..., Tensor]
) -> None:
    """But the block does: or this would not see it."""
    summed: list[tuple[int, ...]] = []

    def forward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        boxed: Callable[..., Any] = make_boxed_func(graph.forward)
        return boxed

    def backward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        sums = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
        summed.extend(tuple(node.args[0].meta["val"].shape) for node in sums)
        return forward(graph, inputs)

    block = blocks()[1].float()
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    y = torch.compile(run, backend=backend)(block, torch.randn(2, 6, WIDTH))
    torch.autograd.backward(y.sum())
    of_hidden = [shape for shape in summed if shape[-1] == 4 * WIDTH]
    assert of_hidden == ([] if run is of_halves else [(12, 4 * WIDTH)])


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"attn_drop_rate": 0.1}])
def test_what_is_not_plain_attention_runs_as_it_is(anywhere: None, options: dict[str, Any]) -> None:
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


def test_under_autocast_it_errs_at_most_twice_as_much_as_the_block(anywhere: None) -> None:
    block = blocks()[1]
    exact = passed(block, block)
    block.float()

    def rounded(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return passed(lambda x: run(x.float()), block)

    ours, usual = rounded(lambda x: of_halves(block, x)), rounded(block)
    for mine, torchs, right in zip(ours, usual, exact, strict=True):
        assert mine.dtype == torchs.dtype
        assert (mine - right).norm() <= 2 * (torchs - right).norm()


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

    def chained(x: Tensor) -> Tensor:
        x = x.float()
        branch = no_branch(modules[0], x)
        for block in modules:
            x, branch = every_row(block, x, branch)
        return x + branch

    def in_turn(x: Tensor) -> Tensor:
        x = x.float()
        for block in modules:
            x = block(x)
        return x

    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        ours, whole = passed(chained, modules), passed(in_turn, modules)
    assert len(ours) == len(whole)
    assert all(map(torch.equal, ours, whole))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 33, 64, torch.device("cuda", 0), torch.bfloat16
    assert fits(*asked)
    monkeypatch.setenv(SWITCH, "0")
    assert not fits(*asked)
