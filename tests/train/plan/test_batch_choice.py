"""Which batches are tried and proposed, from tables of what each would give."""

import pytest

from accelssl.errors import UserError
from accelssl.train.plan.batch_choice import (
    Ceiling,
    Proposal,
    Trial,
    Trials,
    agree,
    largest_fitting,
    parse_batch,
    try_batches,
)

FAR = Ceiling(10**6, "images")


def found(
    rates: dict[int, float | None],
    first: int = 64,
    ceiling: Ceiling = FAR,
    *,
    took_s: float = 1.0,
    enough_s: float = 100.0,
) -> Trials:
    """What comes of trials that give these units a second; a KeyError if others are tried."""
    return try_batches(
        lambda batch: Trial(batch, rates[batch], 10 * batch, took_s), first, ceiling, enough_s
    )


@pytest.mark.parametrize(
    ("rates", "tried", "proposed", "limit"),
    [
        ({64: 100, 128: 150, 256: 155}, 3, 128, "speed"),
        ({64: 100, 128: 104}, 2, 64, "speed"),
        ({64: 100, 128: 60}, 2, 64, "speed"),
        ({64: 100, 128: 105, 256: 111, 512: 113}, 4, 256, "speed"),
        ({64: 100, 128: 150, 256: None}, 3, 128, "memory"),
        ({64: None}, 1, None, "memory"),
    ],
)
def test_batches_double_until_speed_stops_growing_or_memory_is_full(
    rates: dict[int, float | None], tried: int, proposed: int | None, limit: str
) -> None:
    trials = found(rates)
    assert [trial.batch for trial in trials.tried] == [64 << i for i in range(tried)]
    assert (trials.proposed, trials.limit) == (proposed, limit)


@pytest.mark.parametrize(
    ("most", "first", "tried"),
    [(40, 8, [8, 16, 32]), (64, 64, [64]), (127, 64, [64]), (40, 64, [32]), (3, 8, [2])],
)
def test_no_batch_is_larger_than_the_set_or_the_budget(
    most: int, first: int, tried: list[int]
) -> None:
    """Where the first is, the largest power of two that is not."""
    rates: dict[int, float | None] = {batch: float(batch) for batch in tried}
    trials = found(rates, first, Ceiling(most, "budget"))
    assert [trial.batch for trial in trials.tried] == tried
    assert (trials.proposed, trials.limit) == (tried[-1], "budget")


@pytest.mark.parametrize(("took_s", "count"), [(500.0, 2), (40.0, 3), (30.0, 4)])
def test_time_ends_trials_but_two_are_made(took_s: float, count: int) -> None:
    rates: dict[int, float | None] = {64 << i: 2.0**i for i in range(count)}
    trials = found(rates, took_s=took_s)
    assert [trial.batch for trial in trials.tried] == list(rates)
    assert (trials.proposed, trials.limit) == (64 << (count - 1), "time")


def test_what_was_not_tried_is_known_only_above_what_did_not_fit() -> None:
    full, fast = found({64: 1, 128: None}), found({64: 1, 128: 1})
    assert [full.fits(batch) for batch in (64, 128, 512)] == [True, False, False]
    assert [fast.fits(batch) for batch in (64, 128, 512)] == [True, True, None]


def test_ranks_agree_on_the_smallest_of_their_proposals() -> None:
    """With the rate of all there, the memory of the one that needs most, and the slowest's why."""
    quick, slow = found({64: 100, 128: 200, 256: 205}), found({64: 90, 128: None})
    assert agree([quick, slow]) == Proposal(64, 190.0, 640, "memory")
    assert agree([slow, quick]) == agree([quick, slow])
    assert agree([quick]) == Proposal(128, 200.0, 1280, "speed")
    assert agree([quick, found({64: None})]) is None


@pytest.mark.parametrize(
    ("proposed", "fitting", "taken"),
    [((256, 1024, 512), 1024, 1024), ((256, 1024, 512), 600, 512), ((256, 1024), 0, 256)],
)
def test_the_largest_proposal_that_fits_everywhere_is_taken(
    proposed: tuple[int, ...], fitting: int, taken: int
) -> None:
    proposals = [Proposal(batch, 1.0, None, "speed") for batch in proposed]
    assert largest_fitting(proposals, lambda batch: batch <= fitting) == taken


@pytest.mark.parametrize("text", ["abc", "1.5", "", "Auto", "5 12"])
def test_a_batch_that_is_no_number_is_refused_by_its_value(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_batch(text)
    assert repr(text) in refused.value.what and "--batch auto" in refused.value.remedy
