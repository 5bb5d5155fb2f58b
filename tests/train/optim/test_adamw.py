"""AdamW as DINO has it, against torch's own and torch's clipping."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from accelssl.switches import KERNELS, TORCH
from accelssl.train.optim.adamw import (
    AdamW,
    _has_kernel,
    _on_gpu,
    adamw,
    clip_each,
    weight_decay_at,
)


def module(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def backward(trained: nn.Module, scale: float = 1.0) -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
    loss = (trained(rows) ** 2).sum() * scale
    trained.zero_grad()
    loss.backward()


def test_weight_decay_goes_from_its_start_to_its_end_along_half_a_cosine() -> None:
    assert weight_decay_at(0.0, 0.04, 0.4) == pytest.approx(0.04, abs=1e-12)
    assert weight_decay_at(0.25, 0.04, 0.4) == pytest.approx(0.4 - 0.36 * (1 + 0.5**0.5) / 2)
    assert weight_decay_at(0.5, 0.04, 0.4) == pytest.approx(0.22)
    assert weight_decay_at(1.0, 0.04, 0.4) == 0.4


@pytest.mark.parametrize("decays_vectors", [False, True])
def test_a_scheduled_decay_is_torchs_adamw_with_the_decay_of_each_step(
    decays_vectors: bool,
) -> None:
    ours, theirs = module(), module()
    optimizer = adamw(ours, 0.04, final_weight_decay=0.4, decays_vectors=decays_vectors)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.0)
    for step in range(5):
        optimizer.prepare(0.1 * (step + 1), step / 5)
        for group in reference.param_groups:
            group["lr"] = 0.1 * (step + 1)
        decay = 0.4 - 0.36 * (1 + math.cos(math.pi * step / 5)) / 2
        reference.param_groups[0]["weight_decay"] = decay
        reference.param_groups[1]["weight_decay"] = decay * decays_vectors
        for trained, its in ((ours, optimizer), (theirs, reference)):
            backward(trained)
            its.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)  # the factor is a float32


def test_a_parameter_without_gradient_neither_moves_nor_decays() -> None:
    trained = module()
    optimizer = adamw(trained, 0.1, final_weight_decay=0.2, clip=1.0)
    before = copy.deepcopy(trained.state_dict())
    backward(trained)
    last = trained.get_parameter("3.weight")
    last.grad = None
    optimizer.prepare(0.1, 0.5)
    optimizer.step()
    still = [n for n, value in trained.state_dict().items() if torch.equal(value, before[n])]
    assert still == ["3.weight"] and not optimizer.state[last]


def test_each_gradient_is_clipped_by_itself_as_torch_clips_one() -> None:
    ours, theirs = module(), module()
    for trained in (ours, theirs):
        backward(trained, 0.02)
    norms = [float(p.grad.norm()) for p in theirs.parameters() if p.grad is not None]
    most = sorted(norms)[3]
    for parameter in theirs.parameters():
        torch.nn.utils.clip_grad_norm_(parameter, most)
    clip_each([p.grad for p in ours.parameters() if p.grad is not None], most)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=0)
    assert min(norms) < most < max(norms)


def test_a_closure_gives_the_gradients_as_torchs_does() -> None:
    ours, theirs = module(), module()
    optimizer = adamw(ours, 0.1, final_weight_decay=0.1, clip=0.1)
    optimizer.prepare(0.1, 0.0)

    def closure() -> float:
        backward(ours)
        return 1.5

    assert optimizer.step(closure) == 1.5
    reference = adamw(theirs, 0.1, final_weight_decay=0.1, clip=0.1)
    reference.prepare(0.1, 0.0)
    backward(theirs)
    assert reference.step() is None
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_gradients_are_clipped_before_the_update() -> None:
    ours, theirs = module(), module()
    optimizer = adamw(ours, 0.0, clip=0.5)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.0)
    for scale in (1.0, 1e-3, 3.0):
        optimizer.prepare(0.1, 0.0)
        for trained, its in ((ours, optimizer), (theirs, reference)):
            backward(trained, scale)
            if its is reference:
                for parameter in theirs.parameters():
                    torch.nn.utils.clip_grad_norm_(parameter, 0.5)
            its.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_state_carries_over_to_an_optimizer_whose_decay_goes_on() -> None:
    trained = module()
    optimizer = adamw(trained, 0.1, final_weight_decay=0.4)
    backward(trained)
    optimizer.prepare(0.1, 0.2)
    optimizer.step()
    again = module()
    again.load_state_dict(trained.state_dict())
    resumed = adamw(again, 0.1, final_weight_decay=0.4)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert isinstance(resumed, AdamW)
    for model, its in ((trained, optimizer), (again, resumed)):
        backward(model)
        its.prepare(0.1, 0.9)
        its.step()
    for a, b in zip(trained.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same() -> None:
    found = []
    for device in ("cpu", "cuda"):
        trained = module(torch.float32).to(device)
        optimizer = adamw(trained, 0.04, final_weight_decay=0.4, clip=0.3)
        for step in range(4):
            rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)).to(device)
            trained.zero_grad()
            (trained(rows) ** 2).sum().backward()
            optimizer.prepare(0.01, step / 4)
            optimizer.step()
        found.append([p.detach().cpu() for p in trained.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_its_state_is_torchs() -> None:
    """On a GPU torch's own goes on where ours was, and ours where that one was."""
    ours, theirs = module(torch.float32).cuda(), module(torch.float32).cuda()
    optimizer = adamw(ours, 0.1)
    groups = [
        {"params": [p for p in theirs.parameters() if (p.ndim > 1) is are_matrices]}
        for are_matrices in (True, False)
    ]
    reference = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1, fused=True, capturable=True)
    for step in range(6):
        if step == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
            reference.load_state_dict(state)
        rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.prepare(0.01, 0.0)
        for group, decay in zip(reference.param_groups, (0.1, 0.0), strict=True):
            group["lr"], group["weight_decay"] = torch.tensor(0.01, device="cuda"), decay
        for trained, its in ((ours, optimizer), (theirs, reference)):
            trained.zero_grad()
            (trained(rows) ** 2).sum().backward()
            its.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_a_state_from_a_cpu_goes_on_on_a_gpu() -> None:
    start, gone_on = module(torch.float32), module(torch.float32).cuda()
    on_cpu, on_gpu = adamw(start, 0.1), adamw(gone_on, 0.1)
    for its in range(4):
        if its == 2:
            gone_on.load_state_dict(start.state_dict())
            on_gpu.load_state_dict(copy.deepcopy(on_cpu.state_dict()))
        rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(its))
        for trained, optimizer in ((start, on_cpu), (gone_on, on_gpu)):
            trained.zero_grad()
            (trained(rows.to(next(trained.parameters()).device)) ** 2).sum().backward()
            optimizer.prepare(0.01, 0.0)
            optimizer.step()
    for a, b in zip(start.parameters(), gone_on.parameters(), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-4, atol=1e-5)


def test_a_state_is_loaded_as_that_of_a_gpu() -> None:
    """What the hook says is what puts steps where the parameters are."""
    optimizer = adamw(module(), 0.1)
    state = _on_gpu(optimizer, optimizer.state_dict())
    assert all(group["fused"] and group["capturable"] for group in state["param_groups"])
    assert not any(group["fused"] for group in optimizer.param_groups)


@pytest.mark.gpu
def test_each_group_has_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    values = [torch.randn(40, device="cuda") for _ in range(3)]
    betas, eps = [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)], [1e-8, 1e-3, 1e-8]

    def groups() -> list[dict[str, Any]]:
        return [
            {"params": [nn.Parameter(v.clone())], "betas": b, "eps": e}
            for v, b, e in zip(values, betas, eps, strict=True)
        ]

    ours = AdamW(groups(), torch.device("cuda"))
    theirs = torch.optim.AdamW(groups(), lr=0.01)
    for step in range(4):
        ours.prepare(0.01, 0.0)
        for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
            generator = torch.Generator("cuda").manual_seed(step)
            gradient = torch.randn(40, device="cuda", generator=generator)
            a["params"][0].grad, b["params"][0].grad = gradient, gradient.clone()
        ours.step()
        theirs.step()
    for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
        torch.testing.assert_close(a["params"][0], b["params"][0], rtol=1e-5, atol=1e-6)


def test_its_kernel_takes_float32_parameters_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    single, double = ([{"params": [torch.zeros(4, dtype=d)]}] for d in (torch.float, torch.double))
    assert _has_kernel(single) and not _has_kernel(double)
    monkeypatch.setenv(KERNELS, TORCH)
    assert not _has_kernel(single)
