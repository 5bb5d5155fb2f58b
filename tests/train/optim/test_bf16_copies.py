"""Copies of weights give what autocast gives, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.train.optim.adamw import AdamW, adamw
from accelssl.train.optim.bf16_copies import Bf16Copies
from accelssl.train.ranks.distributed import replicate
from accelssl.train.step import Step
from tests.train.test_step import batch, dino, moco, objective

gpu = pytest.mark.gpu


def loss_and_gradients(model: Objective, copies: Bf16Copies | None) -> list[torch.Tensor]:
    views = batch(12, 48, 5, "cpu", seed=1).views
    with torch.autocast("cpu", torch.bfloat16):
        loss = (copies or model)(*views)
    loss.backward()
    found = [loss.detach()]
    for parameter in model.parameters():
        if parameter.requires_grad:
            stands_in = copies.of(parameter) if copies else None
            gradient = parameter.grad if stands_in is None else stands_in.grad
            assert gradient is not None
            found.append(gradient.float())
    return found


def test_loss_and_gradients_are_those_of_autocast() -> None:
    model, plain = objective("cpu"), objective("cpu")
    copies = Bf16Copies(model)
    found = loss_and_gradients(model, copies)
    for ours, theirs in zip(found, loss_and_gradients(plain, None), strict=True):
        assert torch.equal(ours, theirs)
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim == 2]
    assert len(list(copies)) == len(matrices) > 0
    assert all(copies.of(matrix) is not None for matrix in matrices)


def test_what_is_frozen_or_no_matrix_of_a_product_has_none() -> None:
    model = objective("cpu")
    model.encoder.vit.blocks[0].requires_grad_(False)
    copies = Bf16Copies(model)
    for name, parameter in model.named_parameters():
        is_trained_matrix = parameter.ndim == 2 and parameter.requires_grad
        assert (copies.of(parameter) is not None) == is_trained_matrix, name


def test_the_models_own_weights_are_in_their_places_again() -> None:
    model = objective("cpu")
    before = dict(model.named_parameters())
    loss_and_gradients(model, Bf16Copies(model))
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_a_weight_that_was_written_to_is_copied_anew() -> None:
    model, other = objective("cpu"), SimCLR("vit_tiny_patch16_224", head_hidden=64, head_out=32)
    copies = Bf16Copies(model)
    weight = model.get_parameter("encoder.vit.blocks.3.mlp.fc1.weight")
    stands_in = copies.of(weight)
    assert stands_in is not None
    model.load_state_dict(other.state_dict())
    assert not torch.equal(stands_in, weight.bfloat16())
    copies.refresh()
    assert torch.equal(stands_in, weight.bfloat16())
    with torch.no_grad():
        stands_in.zero_()
    copies.refresh()  # the copy is taken to be right while nobody writes to the weight
    assert not stands_in.any()


def test_only_a_method_that_uses_each_weight_once_has_copies() -> None:
    """MoCo's average is made of the weights themselves, and DINO's views pass one by one."""
    assert objective("cpu").is_one_pass
    assert not moco("cpu").is_one_pass and not dino("cpu").is_one_pass


def test_a_weight_that_was_replaced_or_frozen_is_followed() -> None:
    model = objective("cpu")
    copies = Bf16Copies(model)
    weight = model.get_parameter("encoder.vit.blocks.3.mlp.fc1.weight")
    stands_in = copies.of(weight)
    assert stands_in is not None
    weight.data = weight.detach() * 2
    weight.requires_grad_(False)
    copies.refresh()
    assert torch.equal(stands_in, weight.bfloat16()) and not stands_in.requires_grad


@pytest.mark.parametrize(
    ("precision", "replica", "has_copies"),
    [("bf16", "itself", True), ("bf16", "other", False), ("fp32", "itself", False)],
)
def test_the_step_of_a_run_has_copies_on_one_rank(
    precision: str, replica: str, has_copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdamW, "takes_copies", True)
    model = objective("cpu")
    optimizer = adamw(model, 0.1)
    # What Session has of it, and of several ranks.
    stands_in = replicate(model, torch.device("cpu")) if replica == "itself" else nn.Identity()
    for _ in range(2):
        Step(model, optimizer, precision, replica=stands_in)
    assert (optimizer.copies is not None) == has_copies


@gpu
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_step_with_copies_trains_as_one_without(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step is the same; later ones differ by how the update is rounded."""
    found = []
    for has_kernel in (False, True):
        monkeypatch.setattr("accelssl.train.optim.adamw._has_kernel", lambda _, has=has_kernel: has)
        model = objective("cuda")
        optimizer = adamw(model, 0.1)
        step = Step(model, optimizer, "bf16", is_compiled=is_compiled)
        assert (optimizer.copies is not None) == has_kernel
        losses = [step(batch(12, 48, 5, "cuda", seed=i % 3), 5e-5, i / 12) for i in range(12)]
        found.append(torch.stack(losses).tolist())
        for parameter in model.parameters():
            stands_in = optimizer.copies.of(parameter) if optimizer.copies else None
            assert stands_in is None or torch.equal(stands_in, parameter.bfloat16())
    without, with_copies = found
    assert with_copies[0] == pytest.approx(without[0], rel=1e-6)
    assert with_copies == pytest.approx(without, abs=0.02 * without[0])
    assert abs(without[-1] - without[0]) > 0.05 * without[0]


@gpu
def test_weights_loaded_between_replays_are_trained_on() -> None:
    model = objective("cuda")
    step = Step(model, adamw(model, 0.0), "bf16", is_compiled=True)
    data = batch(12, 48, 5, "cuda", seed=1)
    first = float(step(data, 0.0))
    start = copy.deepcopy(model.state_dict())
    for _ in range(4):
        step(data, 1e-3)
    assert float(step(data, 0.0)) != pytest.approx(first, rel=1e-3)
    model.load_state_dict(start)
    assert float(step(data, 0.0)) == pytest.approx(first, rel=1e-4)
