import copy
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from accelssl.model.heads import ProjectionHead
from accelssl.model.simclr import SimCLR, nt_xent
from accelssl.train.optim.bf16_copies import Bf16Copies
from tests import small_vit

TINY = "vit_tiny_patch16_224"


def by_loops(z_q: Tensor, z_k: Tensor, temperature: float) -> float:
    """Equation 1 of the SimCLR paper, written out in float64."""
    z = [row / row.norm() for row in torch.cat([z_q, z_k]).double()]
    n, total = len(z_q), 0.0
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        others = [math.exp(float(z[i] @ z[j]) / temperature) for j in range(2 * n) if j != i]
        total -= math.log(math.exp(float(z[i] @ z[partner]) / temperature) / sum(others))
    return total / (2 * n)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_the_papers_equation(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z_q, z_k = torch.randn(2, 7, 16, generator=generator)
    assert float(nt_xent(z_q, z_k, temperature)) == pytest.approx(
        by_loops(z_q, z_k, temperature), rel=1e-5
    )


def test_nt_xent_gradients_are_right() -> None:
    z = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    numeric = torch.autograd.gradcheck(
        lambda z: nt_xent(z[0], z[1], 0.5), (z,), eps=1e-3, atol=1e-2, rtol=1e-2
    )
    assert numeric


def test_perfect_pairs_cost_little_and_wrong_pairs_much() -> None:
    z = torch.eye(6)
    assert float(nt_xent(z, z, 0.1)) < 0.01
    assert float(nt_xent(z, z.roll(1, 0), 0.1)) > 5


def test_the_head_ends_in_a_norm_without_shift_and_has_no_biases() -> None:
    head = ProjectionHead(192, 64, 32)
    assert [tuple(p.shape) for p in head.parameters() if p.ndim > 1] == [
        (64, 192),
        (64, 64),
        (32, 64),
    ]
    assert not head.layers[-1].bias.requires_grad
    assert all(layer.bias is None for layer in head.layers if isinstance(layer, torch.nn.Linear))
    z = head(torch.randn(256, 192))
    torch.testing.assert_close(z.mean(0), torch.zeros(32), atol=1e-4, rtol=0)


def view(seed: int) -> SimpleNamespace:
    values = torch.randn(4, 6, 768, generator=torch.Generator().manual_seed(seed))
    kept = torch.arange(6).repeat(4, 1)
    return SimpleNamespace(values_NLV=values.requires_grad_(), keep_idx_NL=kept, p=30, grid=8)


def test_a_bank_has_the_projections_of_both_views_at_unit_length() -> None:
    objective, views = SimCLR(small_vit.NAME, head_hidden=32, head_out=16), (view(0), view(1))
    values, kept = (
        torch.cat([getattr(v, k) for v in views]) for k in ("values_NLV", "keep_idx_NL")
    )
    z = objective.head(objective.encoder(values, kept, 30, 8)).detach()
    (bank,) = objective.negatives(*views)
    assert_close(bank, z / z.norm(dim=1, keepdim=True))
    assert float((z.norm(dim=1) - 1).abs().min()) > 0.1


def test_both_views_train_the_encoder() -> None:
    torch.manual_seed(0)
    objective = SimCLR(TINY, head_hidden=32, head_out=16)
    query, key = view(0), view(1)
    loss = objective(query, key)
    loss.backward()
    assert float(query.values_NLV.grad.abs().sum()) > 0
    assert float(key.values_NLV.grad.abs().sum()) > 0
    assert all(
        p.grad is not None and bool(p.grad.isfinite().all())
        for p in objective.parameters()
        if p.requires_grad and p is not objective.encoder.vit.norm.bias
    )
    assert loss.item() == pytest.approx(objective(key, query).item(), rel=1e-4)


def test_with_its_head_compiled_it_is_two_programs_more_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    torch._dynamo.reset()
    plain = SimCLR(small_vit.NAME, head_hidden=32, head_out=16)
    compiled = copy.deepcopy(plain)
    compiled.compile_head()
    for _ in range(2):
        assert_close(*(trained_once(each, each) for each in (compiled, plain)))
    assert counted.frame_count == 2
    assert_close(compiled.state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.slow),  # for its compiler
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_with_its_head_compiled_bf16s_errors_are_as_large_as_without(device: str) -> None:
    """The head's gradients beside float64's, of weights that have copies, as in a run."""
    torch._dynamo.reset()
    plain = SimCLR(small_vit.NAME, head_hidden=64, head_out=16).to(device)
    compiled, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    compiled.compile_head()
    with torch.no_grad():
        for objective in (plain, compiled):
            for weight in (p for p in objective.parameters() if p.ndim > 1):
                weight.copy_(weight.bfloat16())
        exact.load_state_dict(plain.state_dict())
    trained_once(exact, exact)
    errors = []
    for objective in (compiled, plain):
        copies = Bf16Copies(objective)
        trained_once(objective, copies)
        error = 0.0
        for ours, true in zip(objective.head.layers, exact.head.layers, strict=True):
            if isinstance(ours, nn.Linear) and isinstance(true, nn.Linear):
                copied, gradient = copies.of(ours.weight), true.weight.grad
                assert copied is not None and copied.grad is not None and gradient is not None
                error += float((copied.grad - gradient).square().sum())
        errors.append(error**0.5)
    assert 0 < errors[0] < 1.5 * errors[1]


def trained_once(objective: SimCLR, module: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The loss, the spread and all gradients of a batch that `module`, the objective or its copies,
    has seen; in the objective's precision, under autocast with copies."""
    weight = next(objective.parameters())
    values = torch.randn(2, 32, 4, 768, generator=torch.Generator().manual_seed(0)).to(weight)
    kept = torch.arange(4, device=weight.device).expand(32, -1)
    pair = [SimpleNamespace(values_NLV=v, keep_idx_NL=kept, p=48, grid=5) for v in values]
    with torch.autocast(weight.device.type, torch.bfloat16, enabled=module is not objective):
        loss = module(*pair)
    loss.backward()  # type: ignore[no-untyped-call]
    named = objective.named_parameters()
    gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
    return {"loss": loss.detach(), "spread": objective.spread.clone()} | gradients
