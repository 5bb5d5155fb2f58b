import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from accelssl.model.dino import DINO, distillation, entropy, sharpened, teacher_temperature
from accelssl.model.heads import PrototypeHead

TINY = "vit_tiny_patch16_224"
SMALL = {"head_hidden": 24, "head_out": 12, "prototypes": 20}


def by_loops(
    z_q: Tensor, z_k: Tensor, centre: Tensor, t_q: float, t_k: float, skips_same: bool
) -> float:
    """The algorithm of the DINO paper for (crops, images, prototypes), in float64."""
    z_q, z_k, centre, terms = z_q.double(), z_k.double(), centre.double(), []
    for t in range(len(z_k)):
        for s in range(len(z_q)):
            if skips_same and s == t:
                continue
            for i in range(z_q.shape[1]):
                p = torch.exp((z_k[t, i] - centre) / t_k)
                q = torch.exp(z_q[s, i] / t_q)
                terms.append(-float((p / p.sum() * torch.log(q / q.sum())).sum()))
    return sum(terms) / len(terms)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def view(seed: int, keep: int, p: int = 48, grid: int = 5, n: int = 4) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, keep, 768, generator=generator)
    keep_idx = torch.rand(n, grid**2, generator=generator).argsort(1)[:, :keep]
    return SimpleNamespace(values_NLV=values, keep_idx_NL=keep_idx, p=p, grid=grid)


def small_crops(count: int) -> list[SimpleNamespace]:
    return [view(10 + i, 9, 16, 3) for i in range(count)]


def views(mode: str, n_local: int = 2) -> list[SimpleNamespace]:
    if mode == "paper":
        return [view(0, 6), view(1, 25), *small_crops(n_local)]
    return [view(0, 6), view(1, 6), *small_crops(n_local), view(2, 25), view(3, 25)]


def objective(mode: str = "paper", drop_path: float = 0.0) -> DINO:
    torch.manual_seed(0)
    return DINO(TINY, mode=mode, drop_path=drop_path, **SMALL)  # type: ignore[arg-type]


def apart(dino: DINO) -> DINO:
    """The same with a query that has gone on from its key, and a centre that has moved."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in dino.query.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        dino.centre_K.copy_(drawn(len(dino.centre_K), seed=2, scale=0.1))
    return dino


def logits(network: nn.Module, *views: SimpleNamespace) -> Tensor:
    """Each view passed alone: logits_SNK."""
    with torch.no_grad():
        return torch.cat([network([v]) for v in views])


@pytest.mark.parametrize(
    ("n_local", "keys", "skips_same"), [(0, 1, False), (3, 1, False), (0, 2, True), (3, 2, True)]
)
def test_the_loss_is_the_papers_algorithm(n_local: int, keys: int, skips_same: bool) -> None:
    z_q, z_k = drawn(keys + n_local, 3, 11), drawn(keys, 3, 11, seed=1, scale=0.3)
    centre = drawn(11, seed=2, scale=0.2)
    log_p = sharpened(z_k, centre, torch.tensor(0.06))
    loss = distillation(z_q, log_p, 0.1, leaves_out_same=skips_same)
    expected = by_loops(z_q, z_k, centre, 0.1, 0.06, skips_same)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mode", ["paper", "official"])
def test_an_objective_is_that_loss_of_every_pair_of_its_views(mode: str) -> None:
    dino = apart(objective(mode))
    dino.set_progress(0.5)
    seen = views(mode)
    keys = seen[-2:] if mode == "official" else seen[1:2]
    queries = seen[:-2] if mode == "official" else [seen[0], *seen[2:]]
    expected = by_loops(
        logits(dino.query, *queries),
        logits(dino.key.average, *keys),
        dino.centre_K.clone(),
        0.1,
        0.07,
        mode == "official",
    )
    assert dino(*seen).item() == pytest.approx(expected, rel=1e-4)


def test_gradients_of_the_loss_are_right() -> None:
    log_p = sharpened(drawn(2, 2, 5).double(), drawn(5, seed=1).double(), torch.tensor(0.5))
    z_q = drawn(4, 2, 5, seed=3).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: distillation(z, log_p, 0.5, leaves_out_same=True), (z_q,)
    )


def test_softmaxes_centre_and_loss_are_float32_under_autocast() -> None:
    z_q, z_k, centre = drawn(3, 4, 64), drawn(1, 4, 64, seed=1), drawn(64, seed=2)

    def loss() -> Tensor:
        log_p = sharpened(z_k, centre, torch.tensor(0.04))
        return distillation(z_q, log_p, 0.1, leaves_out_same=False)

    with torch.autocast("cpu", torch.bfloat16):
        found = loss()
    assert found.dtype == torch.float32 and torch.equal(found, loss())
    dino = objective()
    with torch.autocast("cpu", torch.bfloat16):
        assert dino(*views("paper")).dtype == torch.float32
    assert dino.centre_K.dtype == torch.float32


def test_the_centre_is_the_moving_mean_of_the_keys_and_moves_after_the_loss() -> None:
    dino, expected = apart(objective("official")), torch.zeros(20, dtype=torch.float64)
    dino.centre_K.zero_()
    first = dino(*views("official")).item()
    dino.centre_K.zero_()
    assert dino(*views("official")).item() == first
    dino.centre_K.zero_()
    for _ in range(3):
        dino(*views("official"))
        keys = logits(dino.key.average, *views("official")[-2:]).double()
        rows = [row for crop in keys for row in crop]
        expected = 0.9 * expected + 0.1 * sum(rows) / len(rows)
    torch.testing.assert_close(dino.centre_K.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_state_holds_the_centre_and_gives_the_same_next_loss() -> None:
    """Forgotten, as a plain attribute would be, it would start at 0 after each resume."""
    dino = apart(objective())
    dino(*views("paper"))
    other = objective()
    other.load_state_dict(dino.state_dict())
    assert "centre_K" in dino.state_dict() and float(other.centre_K.abs().sum()) > 0
    for model in (dino, other):
        model.set_progress(0.4)
    assert other(*views("paper")).item() == dino(*views("paper")).item()


def test_the_temperature_of_the_keys_rises_in_a_line_and_stays() -> None:
    for progress, expected in [(0, 0.04), (0.05, 0.052), (0.125, 0.07), (0.3, 0.07), (1, 0.07)]:
        found = teacher_temperature(progress, 0.04, 0.07, 0.125)
        assert found == pytest.approx(expected, rel=1e-9)
    assert teacher_temperature(0.0, 0.04, 0.07, 0.0) == 0.07
    dino = objective()
    dino.set_progress(0.05)
    assert float(dino.key_temperature) == pytest.approx(0.052)


def test_the_key_follows_after_the_step_with_the_momentum_of_its_progress() -> None:
    dino = objective()
    weight = dino.query.head.get_parameter("layers.0.weight")
    averaged = dino.key.average.get_parameter("head.layers.0.weight")
    for progress in (0.0, 0.5, 1.0):
        before = averaged.clone().double()
        dino.set_progress(progress)
        dino(*views("paper"))
        assert torch.equal(averaged.double(), before)
        with torch.no_grad():
            weight.add_(1.0)
        dino.after_step()
        share = 0.004 * (1 + math.cos(math.pi * progress)) / 2
        expected = before + share * (weight.detach().double() - before)
        torch.testing.assert_close(averaged.double(), expected, rtol=0, atol=1e-6)


def test_gradient_reaches_all_of_the_query_but_the_lengths_of_prototypes() -> None:
    dino = objective("official")
    dino(*views("official")).backward()
    trained = {name for name, p in dino.named_parameters() if p.requires_grad}
    reached = {name for name, p in dino.named_parameters() if p.grad is not None}
    assert trained == reached
    still = {name for name, _ in dino.query.named_parameters()} - {
        name.removeprefix("query.") for name in reached
    }
    assert still == {"head.prototypes.parametrizations.weight.original0"}
    for name in ("patch_embed.proj.weight", "pos_embed", "cls_token"):
        gradient = dino.query.encoder.vit.get_parameter(name).grad
        assert gradient is not None and float(gradient.abs().sum()) > 0


def test_prototypes_have_no_gradient_until_their_share_of_the_budget() -> None:
    dino = objective()
    phases = []
    for progress, is_frozen in [(0.0, True), (0.007, True), (0.0075, False), (0.5, False)]:
        dino.zero_grad()
        dino.set_progress(progress)
        dino(*views("paper")).backward()
        dino.after_backward()
        prototypes = dino.query.head.get_parameter("prototypes.parametrizations.weight.original1")
        assert (prototypes.grad is None) == is_frozen
        assert dino.query.head.get_parameter("layers.0.weight").grad is not None
        phases.append(dino.phase)
    assert phases[0] == phases[1] != phases[2] == phases[3]


def test_small_crops_are_queries_and_change_the_loss() -> None:
    alone, more = objective(), objective()
    a, b = alone(*views("paper", 0)).item(), more(*views("paper", 2)).item()
    assert a != b
    torch.testing.assert_close(alone.centre_K, more.centre_K)  # the keys are the same


def test_the_key_has_no_stochastic_depth_and_the_query_has() -> None:
    dino = objective(drop_path=0.5)
    key, query = view(0, 25, n=16), view(1, 6, n=16)
    assert dino.training
    assert torch.equal(dino.key([key]), dino.key([key]))
    assert not torch.equal(dino.query([query]), dino.query([query]))
    dino.eval()
    assert torch.equal(dino.query([query]), dino.query([query]))
    names = {name for name, _ in dino.query.named_parameters()}
    assert names == {name for name, _ in dino.key.average.named_parameters()}


def test_the_key_starts_as_a_copy_of_its_own_and_is_what_is_evaluated() -> None:
    dino = objective(drop_path=0.1)
    pairs = zip(dino.key.average.parameters(), dino.query.parameters(), strict=True)
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs) and ours is not theirs and not ours.requires_grad
    assert dino.evaluated is dino.encoders()[1] and dino.evaluated is not dino.encoders()[0]
    assert dino.evaluated is dino.key.average.encoder


def test_what_is_noted_is_the_entropy_of_the_keys_and_how_far_queries_are_from_it() -> None:
    dino = apart(objective())
    dino.set_progress(0.5)
    centre, seen = dino.centre_K.clone(), views("paper")
    places = dino.noted
    loss = dino(*seen).item()
    assert {name: scalar.data_ptr() for name, scalar in places.items()} == {
        name: scalar.data_ptr() for name, scalar in dino.noted.items()
    }
    p = torch.softmax((logits(dino.key.average, seen[1])[0].double() - centre) / 0.07, 1)
    expected = sum(-float((row * row.log()).sum()) for row in p) / len(p)
    assert float(dino.noted["teacher_entropy"]) == pytest.approx(expected, rel=1e-4)
    assert float(dino.noted["kl"]) == pytest.approx(loss - expected, rel=1e-4)
    assert 0.1 < float(dino.noted["spread"]) < 1
    assert not set(dino.noted) & set(dino.state_dict())


def test_entropy_is_ln_k_where_keys_are_even_and_zero_where_they_are_sure() -> None:
    even = sharpened(torch.zeros(1, 2, 50), torch.zeros(50), torch.tensor(0.04))
    sure = sharpened(5 * torch.eye(50)[None], torch.zeros(50), torch.tensor(0.04))
    assert float(entropy(even)) == pytest.approx(math.log(50))
    assert float(entropy(sure)) == pytest.approx(0.0, abs=1e-6)


def test_a_head_is_its_formula_in_float64() -> None:
    torch.manual_seed(0)
    head, rows = PrototypeHead(6, 8, 4, 5), torch.randn(7, 6)
    state = {name: value.double() for name, value in head.state_dict().items()}
    x = rows.double()
    for layer in (0, 2, 4):
        x = x @ state[f"layers.{layer}.weight"].T + state[f"layers.{layer}.bias"]
        if layer < 4:
            x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    x = x / x.norm(dim=1, keepdim=True)
    v = state["prototypes.parametrizations.weight.original1"]
    expected = x @ (v / v.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(head(rows).double(), expected, rtol=1e-4, atol=1e-5)


def test_a_head_starts_and_is_shaped_as_the_originals() -> None:
    head = PrototypeHead(192, 2048, 256, 1000)
    linear = [layer for layer in head.layers if isinstance(layer, nn.Linear)]
    shapes = [(layer.in_features, layer.out_features) for layer in linear]
    assert shapes == [(192, 2048), (2048, 2048), (2048, 256)]
    for layer in linear:
        assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
        assert float(layer.bias.detach().abs().sum()) == 0
    lengths = head.get_parameter("prototypes.parametrizations.weight.original0")
    assert lengths.shape == (1000, 1) and (lengths == 1).all() and not lengths.requires_grad
    assert head.get_submodule("prototypes").bias is None


def test_a_copy_of_a_head_is_a_head_of_its_own() -> None:
    head = PrototypeHead(6, 8, 4, 5)
    rows, copied = torch.randn(3, 6), copy.deepcopy(head)
    before = head(rows)
    assert torch.equal(copied(rows), before)
    with torch.no_grad():
        copied.get_parameter("prototypes.parametrizations.weight.original1").normal_()
    assert torch.equal(head(rows), before) and not torch.equal(copied(rows), before)


def test_crops_of_one_size_pass_together_as_each_alone() -> None:
    dino = objective()
    together = dino.query.logits(dino.query.features(small_crops(3)))
    torch.testing.assert_close(together, logits(dino.query, *small_crops(3)), rtol=1e-3, atol=1e-4)
