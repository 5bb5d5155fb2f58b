import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from accelssl.model.heads import ProjectionHead
from accelssl.model.simclr import SimCLR, nt_xent

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


def test_both_views_train_the_encoder() -> None:
    torch.manual_seed(0)
    objective = SimCLR(TINY, head_hidden=32, head_out=16)

    def view(seed: int) -> SimpleNamespace:
        values = torch.randn(4, 6, 768, generator=torch.Generator().manual_seed(seed))
        return SimpleNamespace(
            values_NLV=values.requires_grad_(),
            keep_idx_NL=torch.arange(6).repeat(4, 1),
            p=30,
            grid=8,
        )

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
