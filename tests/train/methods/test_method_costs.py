"""Compressions of each method, and the units an image costs."""

import pytest

from accelssl.pipeline.compression import Compression
from accelssl.train.config.cost import Convention
from accelssl.train.methods.dino import DINOMethod
from accelssl.train.methods.moco import MoCoMethod
from accelssl.train.methods.simclr import SimCLRMethod

DROPS = (0.0, 0.25, 0.5, 0.75, 0.9)
# The paper's rule (the same patch side on both sides, tokens dropped from the query alone) at 240
# px: (3 L_q + L_k) / 196 with L_q = (1 - d) L_k, which it does not round to whole tokens.
COSTS = {
    16: (4.592, 3.731, 2.870, 2.009, 1.492),
    20: (2.939, 2.388, 1.837, 1.286, 0.955),
    24: (2.041, 1.658, 1.276, 0.893, 0.663),
    30: (1.306, 1.061, 0.816, 0.571, 0.424),
    40: (0.735, 0.597, 0.459, 0.321, 0.239),
    48: (0.510, 0.415, 0.319, 0.223, 0.166),
}


@pytest.mark.parametrize("p", COSTS)
def test_moco_costs_what_the_papers_formula_gives_but_for_the_part_of_a_token(p: int) -> None:
    for drop, cost in zip(DROPS, COSTS[p], strict=True):
        found = MoCoMethod(240).sample_cost(Compression(p, drop))
        lost = (1 - drop) * (240 // p) ** 2 % 1  # of a token, by rounding down
        lost = 0.0 if lost > 1 - 1e-9 else lost
        assert found == pytest.approx(cost - 3 * lost / 196, abs=0.0006)


def test_symmetric_moco_costs_twice_and_simclr_trains_both_views() -> None:
    half = Compression(30, 0.5)
    assert MoCoMethod(240).sample_cost(half) == pytest.approx((3 * 32 + 64) / 196)
    assert MoCoMethod(240, symmetric=True).sample_cost(half) == pytest.approx(2 * (96 + 64) / 196)
    assert SimCLRMethod(240).sample_cost(half) == pytest.approx(6 * 32 / 196)
    assert MoCoMethod(240).sample_cost(half, Convention.TEXT197) == pytest.approx(
        (3 * 33 + 65) / 197
    )


def test_both_views_have_the_patch_side_and_mocos_query_alone_is_dropped_from() -> None:
    half, whole = Compression(30, 0.5), Compression(30, 0.0)
    assert SimCLRMethod().compressions(half) == (half, half)
    assert MoCoMethod().compressions(half) == (half, whole)
    assert MoCoMethod(symmetric=True).compressions(half) == (half, half, whole, whole)


def test_dino_costs_what_the_papers_formula_gives() -> None:
    whole, half = Compression(16, 0.0), Compression(30, 0.5)
    text = Convention.TEXT197
    # The paper's run of 2846M units: 7.381 an image, six small crops, uncompressed at 224 px.
    assert DINOMethod(224, n_local=6).sample_cost(whole, text) == pytest.approx(7.381, abs=5e-4)
    assert DINOMethod(240, n_local=10).sample_cost(half) == pytest.approx(
        (3 * 32 + 3 * 10 * 36 + 64) / 196
    )
    assert DINOMethod(240).sample_cost(half) == MoCoMethod(240).sample_cost(half)


def test_official_dino_has_two_queries_and_two_keys() -> None:
    whole, half = Compression(16, 0.0), Compression(30, 0.5)
    for n_local, cost in ((8, 12.5), (10, 13.6)):
        official = DINOMethod(224, mode="official", n_local=n_local)
        found = official.sample_cost(whole, Convention.TEXT197)
        assert found == pytest.approx(cost, abs=0.05)
    found = DINOMethod(240, mode="official", n_local=2, local_size=64).sample_cost(half)
    assert found == pytest.approx((3 * 2 * 32 + 3 * 2 * 16 + 2 * 64) / 196)


def test_dinos_small_crops_and_keys_are_whole() -> None:
    half, whole, small = Compression(30, 0.5), Compression(30, 0.0), Compression(16, 0.0)
    assert DINOMethod().compressions(half) == (half, whole)
    assert DINOMethod(n_local=2).compressions(half) == (half, whole, small, small)
    assert DINOMethod(mode="official", n_local=1).compressions(half) == (
        half,
        half,
        small,
        whole,
        whole,
    )
