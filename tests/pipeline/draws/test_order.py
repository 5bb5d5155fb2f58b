import itertools

import numpy as np
import pytest

from accelssl.errors import UserError
from accelssl.pipeline.draws.order import (
    Plan,
    Position,
    batches_per_epoch,
    epoch_order,
    plans,
    sequential_plans,
)


def epoch_of(rank: int, world: int, epoch: int, samples: int = 103, batch: int = 4) -> list[Plan]:
    full = batches_per_epoch(samples, batch, world)
    start = Position(epoch, 0)
    return list(itertools.islice(plans(samples, batch, 0, rank, world, start), full))


def seen(planned: list[Plan]) -> list[int]:
    return [int(sample) for plan in planned for sample in plan.samples_N]


def test_an_epochs_order_is_a_permutation_and_another_in_each_epoch_and_seed() -> None:
    order = epoch_order(1000, 0, 0)
    assert sorted(order.tolist()) == list(range(1000))
    for other in (epoch_order(1000, 0, 1), epoch_order(1000, 1, 0)):
        assert sorted(other.tolist()) == list(range(1000))
        assert (order == other).mean() < 0.02
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_never_share_a_sample_within_an_epoch_and_have_equal_batches(world: int) -> None:
    ranks = [seen(epoch_of(rank, world, 2)) for rank in range(world)]
    everything = list(itertools.chain(*ranks))
    assert len(set(everything)) == len(everything)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(everything) == 103 // (4 * world) * 4 * world


def test_samples_left_out_of_one_epoch_come_in_another() -> None:
    left_out = [set(range(103)) - set(seen(epoch_of(0, 1, epoch))) for epoch in range(4)]
    assert all(len(out) == 3 for out in left_out)
    assert set.intersection(*left_out) == set()


def test_a_later_start_continues_with_the_very_next_batch_over_epochs() -> None:
    whole = list(itertools.islice(plans(21, 4, 7, 1, 2, Position()), 9))
    for done in range(8):
        rest = plans(21, 4, 7, 1, 2, whole[done].after)
        for expected, plan in zip(whole[done + 1 :], rest, strict=False):
            assert (plan.samples_N == expected.samples_N).all()
            assert (plan.epoch, plan.after) == (expected.epoch, expected.after)


def test_a_set_smaller_than_a_batch_on_every_rank_is_refused() -> None:
    with pytest.raises(UserError, match="7 training images"):
        batches_per_epoch(7, 4, 2)


def test_evaluation_visits_every_sample_once_in_order() -> None:
    planned = list(sequential_plans(10, 4))
    assert [len(plan.samples_N) for plan in planned] == [4, 4, 2]
    assert seen(planned) == list(range(10))
