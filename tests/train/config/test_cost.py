"""Costs of the methods against hand-made sums. test_paper.py has the paper's tables."""

import pytest

from accelssl.train.config.cost import Convention, dino_cost, simclr_cost


def test_simclr_trains_both_views_and_dino_its_small_crops_too() -> None:
    assert simclr_cost(196, 196) == 6
    assert simclr_cost(49, 98) == pytest.approx(3 * 0.75)
    assert dino_cost(196, 196, 6, 36) == pytest.approx(4 + 18 * 36 / 196)
    assert f"{dino_cost(196, 196, 6, 36, Convention.TEXT197):.3f}" == "7.381"
