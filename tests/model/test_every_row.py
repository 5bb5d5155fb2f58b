from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from accelssl.model import every_row as module
from accelssl.model.every_row import every_row
from accelssl.model.short_attention import SWITCH, fits

WIDTH = 192


def blocks(**options: Any) -> list[nn.Module]:
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=3, **options)
    return list(vit.double().train().get_submodule("blocks").children())


def passed(block: Callable[[Tensor], Tensor], modules: nn.Module) -> list[Tensor]:
    """Values of a block and its gradients, by the input and by all weights."""
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    y = block(x)
    torch.autograd.backward(y.square().sum())
    gradients = [x.grad, *(weight.grad for weight in modules.parameters())]
    modules.zero_grad(set_to_none=True)
    return [y, *(g for g in gradients if g is not None)]


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short attention at any length and precision on any device: by its definition, on a CPU."""
    monkeypatch.setattr(module, "fits", lambda *_: True)


@pytest.mark.parametrize("options", [{}, {"init_values": 0.5}, {"qkv_bias": False}])
def test_its_values_and_gradients_are_the_blocks(anywhere: None, options: dict[str, Any]) -> None:
    block = blocks(**options)[1]
    whole = passed(block, block)
    ours = passed(lambda x: every_row(block, x), block)
    assert len(ours) == len(whole)
    torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"attn_drop_rate": 0.1}])
def test_what_is_not_plain_attention_runs_as_it_is(anywhere: None, options: dict[str, Any]) -> None:
    block = blocks(**options)[1]
    torch.manual_seed(2)
    whole = passed(block, block)
    torch.manual_seed(2)
    assert all(map(torch.equal, passed(lambda x: every_row(block, x), block), whole))


def test_one_compilation_serves_all_blocks(anywhere: None) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    run = torch.compile(every_row, dynamic=False, backend=backend)
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    for block in blocks():
        run(block, x)
    assert len(compiled) == 1


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 33, 64, torch.device("cuda", 0), torch.bfloat16
    assert fits(*asked)
    monkeypatch.setenv(SWITCH, "0")
    assert not fits(*asked)
