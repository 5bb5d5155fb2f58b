"""The step on a GPU: compiled and captured, it trains as the plain one does."""

import copy

import pytest
import torch

from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.loader import Batch, Tokens
from accelssl.train.optim.adamw import AdamW, adamw
from accelssl.train.step import Step

gpu = pytest.mark.gpu


def batch(
    keep: int, p: int, grid: int, device: str, seed: int, n: int = 16, n_local: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = tuple(
        Tokens(
            torch.randn(n, keep, 768, generator=generator).to(device),
            torch.rand(n, grid**2, generator=generator).argsort(1)[:, :keep].to(device),
            p,
            grid,
        )
        for keep, p, grid in [(keep, p, grid)] * 2 + [(9, 16, 3)] * n_local
    )
    return Batch(views, torch.arange(n).numpy(), 0)


def objective(device: str) -> SimCLR:
    torch.manual_seed(0)
    return SimCLR("vit_tiny_patch16_224", head_hidden=64, head_out=32).to(device)


def moco(device: str) -> MoCo:
    torch.manual_seed(0)
    return MoCo("vit_tiny_patch16_224", head_hidden=64, head_out=32, momentum=0.5).to(device)


def dino(device: str, drop_path: float = 0.0, frozen_last: float = 0.5) -> DINO:
    torch.manual_seed(0)
    model = DINO(
        "vit_tiny_patch16_224",
        head_hidden=64,
        head_out=32,
        prototypes=48,
        frozen_last=frozen_last,
        drop_path=drop_path,
    )
    return model.to(device)


def made(algo: str, device: str) -> tuple[Objective, AdamW]:
    if algo == "dino":
        model = dino(device)
        return model, adamw(model, 0.04, final_weight_decay=0.4, clip=0.3)
    other: Objective = moco(device) if algo == "moco" else objective(device)
    return other, adamw(other, 0.1)


def losses(
    device: str, *, is_compiled: bool, precision: str, steps: int = 9, algo: str = "simclr"
) -> list[float]:
    """Two stages in turn, so that each shape is met before, while and after it is captured."""
    model, optimizer = made(algo, device)
    step = Step(model, optimizer, precision, is_compiled=is_compiled)
    found = []
    for i in range(steps):
        keep, p, grid = ((12, 48, 5), (16, 30, 8))[i // 2 % 2]
        data = batch(keep, p, grid, device, seed=i, n_local=2 * (algo == "dino"))
        found.append(step(data, 1e-4 * (i + 1) / steps, i / steps))
    return torch.stack(found).tolist()


def test_a_step_is_adamw_on_the_gradient_of_the_loss() -> None:
    ours, theirs = objective("cpu"), objective("cpu")
    data = batch(12, 48, 5, "cpu", seed=1)
    step = Step(ours, adamw(ours, 0.0), "fp32")
    trained = [p for p in theirs.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    for _ in range(3):
        loss = step(data, 1e-3)
        expected = theirs(*data.views)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert float(loss) == float(expected.detach())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_the_spread_of_a_step_is_its_own_and_stays_when_the_next_one_runs(device: str) -> None:
    step = Step(model := objective(device), adamw(model, 0.0), "fp32")
    first, second = (batch(12, 48, 5, device, seed=i) for i in (1, 2))
    found = []
    for data in (first, second, first, second):
        step(data, 0.0)
        found.append(step.spread)
    a, b, again, _ = torch.stack(found).tolist()
    assert a == pytest.approx(again, rel=1e-4) and abs(a - b) > 1e-4 * a


def test_a_step_follows_the_momentum_at_its_progress() -> None:
    """At rate 0 the query stays, and the key comes nearer by 1 - m in each step."""
    model = moco("cpu")
    step, data = Step(model, adamw(model, 0.0), "fp32"), batch(12, 48, 5, "cpu", seed=1)
    before, shares = key_gap(model), []
    for progress in (0.0, 0.5, 1.0):
        step(data, 0.0, progress)
        after = key_gap(model)
        shares.append(1 - after / before)
        before = after
    assert shares == pytest.approx([0.5, 0.25, 0.0], abs=1e-5)


def key_gap(model: MoCo) -> float:
    """How far one weight of the key is from the query's; first called, it is set to 1."""
    name = "encoder.vit.blocks.0.attn.qkv.weight"
    key, query = model.key.average.get_parameter(name), model.query.get_parameter(name)
    if torch.equal(key, query):
        with torch.no_grad():
            key[0, 0] = query[0, 0] + 1
    return float((key - query)[0, 0].detach())


@gpu
def test_a_captured_step_follows_the_momentum() -> None:
    model = moco("cuda")
    step = Step(model, adamw(model, 0.0), "fp32", is_compiled=True)
    data = batch(12, 48, 5, "cuda", seed=1)
    for _ in range(3):
        step(data, 0.0, 0.0)
    before = key_gap(model)
    for progress, share in ((0.0, 0.5), (0.5, 0.25), (1.0, 0.0)):
        step(data, 0.0, progress)
        torch.cuda.synchronize()
        after = key_gap(model)
        assert 1 - after / before == pytest.approx(share, abs=1e-4)
        before = after


@gpu
def test_a_new_phase_is_captured_anew_and_trains_as_the_plain_step() -> None:
    """The prototypes keep still for four steps, of which two are replayed, and then move."""
    found, moves = [], []
    for is_compiled in (False, True):
        model = dino("cuda")
        optimizer = adamw(model, 0.04, final_weight_decay=0.4, clip=0.3)
        step = Step(model, optimizer, "fp32", is_compiled=is_compiled)
        data = batch(12, 48, 5, "cuda", seed=1, n_local=2)
        prototypes = model.query.head.get_parameter("prototypes.parametrizations.weight.original1")
        for i in range(9):
            before = prototypes.detach().clone()
            found.append(step(data, 1e-3, i / 8))
            torch.cuda.synchronize()
            moves.append(bool((prototypes != before).any()))
    plain, captured = torch.stack(found).view(2, 9).tolist()
    assert moves == ([False] * 4 + [True] * 5) * 2
    assert captured == pytest.approx(plain, rel=1e-3)


@gpu
def test_a_captured_step_draws_from_seed_and_number_of_the_step() -> None:
    """A run that goes on after its third step draws what the whole run draws."""

    def drawn(seed: int, first: int, count: int) -> list[float]:
        model = dino("cuda", drop_path=0.5)
        step = Step(model, adamw(model, 0.0), "fp32", is_compiled=True, seed=seed, steps=first)
        data, found = batch(12, 48, 5, "cuda", seed=1), []
        for _ in range(count):
            found.append(float(step(data, 0.0, 0.0)))
            model.centre_K.zero_()  # so that nothing but what is drawn differs between steps
        return found

    whole, part, other = drawn(0, 0, 8), drawn(0, 3, 5), drawn(1, 0, 8)
    assert len({round(loss, 4) for loss in whole}) == 8
    assert part == pytest.approx(whole[3:], rel=1e-4)
    assert all(abs(a - b) > 1e-4 * a for a, b in zip(whole, other, strict=True))


@gpu
@pytest.mark.parametrize("algo", ["simclr", "moco", "dino"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_trains_as_the_plain_one(precision: str, algo: str) -> None:
    captured = losses("cuda", is_compiled=True, precision=precision, algo=algo)
    plain = losses("cuda", is_compiled=False, precision=precision, algo=algo)
    tolerance = 1e-3 if precision == "fp32" else 3e-2
    assert captured == pytest.approx(plain, rel=tolerance)
    assert plain[-1] != pytest.approx(plain[0], rel=1e-3)


@gpu
def test_a_captured_step_follows_the_learning_rate() -> None:
    model = objective("cuda")
    step = Step(model, adamw(model, 0.0), "fp32", is_compiled=True)
    data = batch(12, 48, 5, "cuda", seed=1)
    for _ in range(3):
        step(data, 1e-3)
    kernel = model.get_parameter("encoder.vit.blocks.0.attn.qkv.weight")
    for rate, moves in ((0.0, False), (1e-3, True)):
        before = kernel.detach().clone()
        step(data, rate)
        torch.cuda.synchronize()
        assert bool((kernel != before).any()) is moves


@gpu
def test_a_resumed_optimizer_still_follows_the_learning_rate() -> None:
    model = objective("cuda")
    optimizer = adamw(model, 0.0)
    step = Step(model, optimizer, "fp32", is_compiled=True)
    data = batch(12, 48, 5, "cuda", seed=1)
    step(data, 1e-3)
    again = objective("cuda")
    resumed = adamw(again, 0.0)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    follower = Step(again, resumed, "fp32", is_compiled=True)
    for _ in range(4):
        assert float(follower(data, 1e-3)) == pytest.approx(float(step(data, 1e-3)), rel=1e-4)


@gpu
@pytest.mark.parametrize("algo", ["simclr", "moco", "dino"])
def test_launching_a_step_does_not_wait_for_the_gpu(algo: str) -> None:
    model, optimizer = made(algo, "cuda")
    step = Step(model, optimizer, "bf16", is_compiled=True)
    data = batch(12, 48, 5, "cuda", seed=1, n_local=2 * (algo == "dino"))
    for _ in range(3):
        step(data, 1e-3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(data, 1e-3)
        step(data, 1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
def test_a_new_shape_takes_the_memory_of_the_one_before() -> None:
    model = objective("cuda")
    step = Step(model, adamw(model, 0.0), "bf16", is_compiled=True)
    reserved = []
    for keep in (60, 61, 62, 63, 64):
        data = batch(keep, 30, 8, "cuda", seed=1, n=256)
        for _ in range(3):
            step(data, 1e-4).item()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] < 1.3 * reserved[0]


@gpu
def test_the_loss_of_a_step_stays_when_the_next_one_runs() -> None:
    model = objective("cuda")
    step = Step(model, adamw(model, 0.0), "fp32", is_compiled=True)
    first, second = (batch(12, 48, 5, "cuda", seed=i) for i in (1, 2))
    for data in (first, second):
        step(data, 0.0)
    a, b = step(first, 0.0), step(second, 0.0)
    assert float(a) != float(b)
    assert float(a) == pytest.approx(float(step(first, 0.0)), rel=1e-5)


@gpu
def test_compiled_weights_have_the_names_of_plain_ones() -> None:
    model = objective("cuda")
    step = Step(model, adamw(model, 0.0), "fp32", is_compiled=True)
    names = set(model.state_dict())
    for _ in range(3):
        step(batch(12, 48, 5, "cuda", seed=1), 1e-3)
    assert set(model.state_dict()) == names == set(objective("cpu").state_dict())
