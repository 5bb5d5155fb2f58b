import copy
import math

import pytest
import torch
from torch import nn

from accelssl.model.batch_norm import GlobalBatchNorm1d
from accelssl.model.ema import MovingAverage, momentum_at


def followed() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4, bias=False), GlobalBatchNorm1d(4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    return module


def test_momentum_rises_from_its_start_to_one_along_half_a_cosine() -> None:
    for start in (0.99, 0.5):
        assert momentum_at(0.0, start) == start
        assert momentum_at(0.5, start) == pytest.approx((1 + start) / 2)
        assert momentum_at(1.0, start) == 1
    assert momentum_at(1 / 3, 0.99) == pytest.approx(1 - 0.01 * 0.75)
    steps = [momentum_at(i / 20, 0.99) for i in range(21)]
    assert steps == sorted(steps) and len(set(steps)) == 21


def test_after_k_steps_it_is_the_weighted_sum_of_all_it_has_followed() -> None:
    """average_k = (m_1 ... m_k) start + sum_i (1 - m_i) (m_(i+1) ... m_k) followed_i."""
    module = followed().double()
    average = MovingAverage(module, 0.6).double()
    kernel = module.get_parameter("0.weight")
    seen, momenta = [kernel.detach().clone()], [0.0]
    for step in range(1, 8):
        progress = step / 8
        with torch.no_grad():
            kernel.copy_(torch.randn_like(kernel))
        average.set_progress(progress)
        average.follow(module)
        seen.append(kernel.detach().clone())
        momenta.append(1 - 0.4 * (1 + math.cos(math.pi * progress)) / 2)
    expected = torch.zeros_like(seen[0])
    for i, value in enumerate(seen):
        expected += (1 - momenta[i]) * math.prod(momenta[i + 1 :]) * value
    averaged = average.average.get_parameter("0.weight")
    torch.testing.assert_close(averaged, expected, atol=1e-14, rtol=1e-14)


def test_at_the_end_of_the_budget_it_stays_exactly_where_it_is() -> None:
    module = followed()
    average = MovingAverage(module, 0.99)
    average.set_progress(1.0)
    before = copy.deepcopy(average.state_dict())
    with torch.no_grad():
        module.get_parameter("0.weight").add_(1.0)
    average.follow(module)
    assert all(torch.equal(before[name], value) for name, value in average.state_dict().items())


def test_it_starts_as_a_copy_requires_no_gradient_and_gives_none() -> None:
    module = followed()
    average = MovingAverage(module, 0.99)
    assert average.average is not module
    for ours, theirs in zip(average.parameters(), module.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours is not theirs and not ours.requires_grad
    assert module[0].weight.requires_grad  # the followed one is left as it was
    rows = torch.randn(5, 3, requires_grad=True)
    assert not average(rows).requires_grad


def test_batch_norm_statistics_come_from_its_own_rows_and_not_from_the_followed_module() -> None:
    module = followed()
    average = MovingAverage(module, 0.99)
    module(torch.randn(8, 3) + 5)
    average.follow(module)
    mean = average.average.get_buffer("1.running_mean")
    assert torch.equal(mean, torch.zeros(4))
    rows = torch.randn(8, 3)
    average(rows)
    hidden = average.average.get_submodule("0")(rows)
    torch.testing.assert_close(mean, 0.1 * hidden.mean(0))
    assert int(average.average.get_buffer("1.num_batches_tracked")) == 1


def test_autocast_leaves_the_average_in_float32() -> None:
    """A share of 1e-4 of a difference would be lost in bfloat16."""
    module = followed()
    average = MovingAverage(module, 0.9999)
    with torch.no_grad():
        module.get_parameter("0.weight").add_(1.0)
    kernel = average.average.get_parameter("0.weight")
    before = kernel.clone()
    with torch.autocast("cpu", torch.bfloat16):
        average.follow(module)
    moved = kernel - before
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-4), atol=1e-7, rtol=0)


def test_momentum_is_no_part_of_the_state() -> None:
    names = set(MovingAverage(followed(), 0.99).state_dict())
    assert names == {f"average.{name}" for name in followed().state_dict()}
