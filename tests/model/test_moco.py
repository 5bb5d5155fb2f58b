import copy
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from accelssl.model.batch_norm import GlobalBatchNorm1d
from accelssl.model.heads import moco_head
from accelssl.model.moco import MoCo, contrast

TINY = "vit_tiny_patch16_224"


def by_loops(z_q: Tensor, z_k: Tensor, temperature: float) -> float:
    """Algorithm 1 of the MoCo-v3 paper, written out in float64."""
    queries = [row / row.norm() for row in z_q.double()]
    keys = [row / row.norm() for row in z_k.double()]
    total = 0.0
    for i, q in enumerate(queries):
        all_keys = [math.exp(float(q @ k) / temperature) for k in keys]
        total -= math.log(all_keys[i] / sum(all_keys))
    return 2 * temperature * total / len(queries)


def view(seed: int, keep: int = 6) -> SimpleNamespace:
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(4, keep, 768, generator=drawn)
    keep_idx = torch.stack([torch.randperm(25, generator=drawn)[:keep] for _ in range(4)])
    return SimpleNamespace(values_NLV=values.requires_grad_(), keep_idx_NL=keep_idx, p=48, grid=5)


def objective() -> MoCo:
    torch.manual_seed(0)
    return MoCo(TINY, head_hidden=32, head_out=16)


def gradient_of(moco: MoCo, *views: SimpleNamespace) -> dict[str, Tensor]:
    moco.zero_grad()
    moco(*views).backward()
    return {name: p.grad.clone() for name, p in moco.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_loss_is_the_papers_algorithm(temperature: float) -> None:
    z_q, z_k = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    assert float(contrast(z_q, z_k, temperature)) == pytest.approx(
        by_loops(z_q, z_k, temperature), rel=1e-5
    )


def test_gradients_of_the_loss_are_right_and_keys_get_none() -> None:
    z_k = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    z_q = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: contrast(z, z_k, 0.2), (z_q,))
    torch.autograd.backward(contrast(z_q, z_k, 0.2))
    assert z_k.grad is None


def test_logits_and_loss_are_float32_under_autocast() -> None:
    z_q, z_k = torch.randn(2, 64, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = contrast(z_q, z_k, 0.2)
    assert loss.dtype == torch.float32 and torch.equal(loss, contrast(z_q, z_k, 0.2))


def test_heads_have_the_layers_norms_and_sizes_of_the_original() -> None:
    moco = MoCo(TINY)
    for head, sides in [
        (moco.query.projector, (192, 4096, 4096, 256)),
        (moco.predictor, (256, 4096, 256)),
    ]:
        assert isinstance(head, nn.Sequential)
        linear = [layer for layer in head if isinstance(layer, nn.Linear)]
        norms = [layer for layer in head if isinstance(layer, GlobalBatchNorm1d)]
        assert [(layer.in_features, layer.out_features) for layer in linear] == list(
            pairwise(sides)
        )
        assert all(layer.bias is None for layer in linear)
        assert [norm.affine for norm in norms] == [True] * (len(sides) - 2) + [False]
        kinds = [type(layer) for layer in head]
        hidden = [nn.Linear, GlobalBatchNorm1d, nn.ReLU]
        assert kinds == hidden * (len(sides) - 2) + [nn.Linear, GlobalBatchNorm1d]


def test_a_head_computes_what_torchs_own_layers_compute() -> None:
    torch.manual_seed(0)
    head, rows = moco_head(2, 6, 8, 4), torch.randn(16, 6)
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Linear(6, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 4, bias=False),
        nn.BatchNorm1d(4, affine=False),
    )
    assert torch.equal(head(rows), theirs(rows))


def test_gradient_reaches_query_and_predictor_and_nothing_else() -> None:
    moco = objective()
    query, key = view(0), view(1)
    names = set(gradient_of(moco, query, key))
    trained = {name for name, p in moco.named_parameters() if p.requires_grad}
    assert names == trained
    assert {name.partition(".")[0] for name in names} == {"query", "predictor"}
    assert not any("patch_embed" in name or "pos_embed" in name for name in names)
    assert {name for name, _ in moco.query.named_parameters()} - {
        name.removeprefix("query.") for name in names
    } == {
        "encoder.vit.pos_embed",
        "encoder.vit.patch_embed.proj.weight",
        "encoder.vit.patch_embed.proj.bias",
    }
    assert float(query.values_NLV.grad.abs().sum()) > 0 and key.values_NLV.grad is None


def test_the_key_moves_before_it_is_used() -> None:
    """The loss of a step is that of keys made by the average that the step leaves behind."""
    moco = objective()
    with torch.no_grad():
        for parameter in moco.query.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    before = copy.deepcopy(moco)
    moco.set_progress(0.3)
    query, key = view(0, keep=3), view(1, keep=9)
    loss = moco(query, key).item()
    z_q = before.predictor(before.query(query))
    with torch.no_grad():
        stale = float(contrast(z_q, copy.deepcopy(before.key)(key), 0.2))
        share = 0.01 * (1 + math.cos(0.3 * math.pi)) / 2
        pairs = zip(before.key.average.parameters(), before.query.parameters(), strict=True)
        for average, current in pairs:
            average.add_(share * (current - average))
        fresh = float(contrast(z_q, before.key(key), 0.2))
    assert loss == pytest.approx(fresh, rel=1e-5)
    assert abs(stale - fresh) > 1e-4 * fresh


def test_the_symmetric_loss_is_the_sum_of_both_one_sided_ones() -> None:
    q1, q2, k1, k2 = view(0, 4), view(1, 4), view(2, 9), view(3, 9)
    alone = objective()
    forth = gradient_of(alone, q1, k2)
    loss_forth = objective()(q1, k2).item()
    back, loss_back = gradient_of(objective(), q2, k1), objective()(q2, k1).item()
    both, loss = gradient_of(objective(), q1, q2, k1, k2), objective()(q1, q2, k1, k2).item()
    assert loss == pytest.approx(loss_forth + loss_back, rel=1e-5)
    assert abs(loss_forth - loss_back) > 1e-3
    for name, gradient in both.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            gradient, forth[name] + back[name], atol=2e-4 * scale + 1e-7, rtol=1e-3
        )


def test_each_query_of_the_symmetric_loss_has_a_bank_of_the_keys_it_meets() -> None:
    moco, views = objective(), (view(0, 4), view(1, 4), view(2, 9), view(3, 9))
    moco.set_progress(1.0)  # the key stands still
    k1, k2 = (normalize(moco.key(key)) for key in views[2:])
    assert float((k1 - k2).abs().max()) > 0.01
    for found, expected in zip(moco.negatives(*views), (k2, k1), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_bank_adds_its_rows_to_the_negatives_of_its_own_query() -> None:
    moco, views = objective(), (view(0, 4), view(1, 4), view(2, 9), view(3, 9))
    moco.set_progress(1.0)
    generator = torch.Generator().manual_seed(0)
    moco.bank = tuple(normalize(torch.randn(5, 16, generator=generator)) for _ in range(2))
    queries = [normalize(moco.predictor(moco.query(query))) for query in views[:2]]
    keys = [normalize(moco.key(key)) for key in views[2:]]
    expected = 0.0
    for query, key, bank in zip(queries, reversed(keys), moco.bank, strict=True):
        logits = query @ torch.cat([key, bank]).T / 0.2
        expected += cross_entropy(logits, torch.arange(4)).item() * 2 * 0.2
    assert moco(*views).item() == pytest.approx(expected, rel=1e-5)
    moco.bank = moco.bank[::-1]
    assert moco(*views).item() != pytest.approx(expected, rel=1e-4)


def test_each_view_passes_alone_so_that_batch_norms_see_one_view() -> None:
    moco = objective()
    moco(view(0, 4), view(1, 4), view(2, 9), view(3, 9))
    for branch in (moco.query, moco.key.average):
        assert int(branch.get_buffer("projector.1.num_batches_tracked")) == 2


def test_what_is_evaluated_is_the_query_and_what_is_compiled_both() -> None:
    moco = objective()
    assert moco.evaluated is moco.query.encoder
    assert moco.encoders() == (moco.query.encoder, moco.key.average.encoder)


def test_a_state_dict_carries_the_key_over() -> None:
    moco, other = objective(), MoCo(TINY, head_hidden=32, head_out=16)
    moco(view(0), view(1))
    with torch.no_grad():
        moco.query.get_parameter("projector.0.weight").add_(1.0)
    moco(view(0), view(1))
    other.load_state_dict(moco.state_dict())
    for name, value in other.state_dict().items():
        assert torch.equal(value, moco.state_dict()[name])
    key = moco.state_dict()["key.average.projector.0.weight"]
    assert not torch.equal(key, moco.state_dict()["query.projector.0.weight"])
    assert other(view(2), view(3)).item() == moco(view(2), view(3)).item()
