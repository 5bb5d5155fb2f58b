"""Every cell of the paper's three ablation tables, to the printed digits."""

import pytest

from accelssl.train.config.cost import Convention, dino_cost, moco_cost, simclr_cost

TEXT = Convention.TEXT197
# Token dropping: L_q, L_k as printed (CLS counted) -> units an image.
DROP = [
    (20, 20, 0.4),
    (20, 40, 0.5),
    (20, 197, 1.3),
    (50, 50, 1.0),
    (50, 100, 1.3),
    (50, 197, 1.8),
    (100, 100, 2.0),
    (100, 197, 2.5),
    (197, 197, 4.0),
]
# The same patch side for query and key: patches of a 240 px crop -> units an image.
SAME_PATCH = [(225, 4.59), (144, 2.94), (100, 2.04), (64, 1.31), (36, 0.73)]
# Query at 30 px: patches of the key -> units an image.
KEY_PATCH = [(225, 2.1), (144, 1.7), (100, 1.5), (64, 1.3)]


def printed(value: float, digits: int) -> float:
    """Rounded half to even, as the tables print."""
    return float(f"{value:.{digits}f}")


@pytest.mark.parametrize(("l_q", "l_k", "cell"), DROP)
def test_the_token_dropping_table(l_q: int, l_k: int, cell: float) -> None:
    assert printed(moco_cost(l_q - 1, l_k - 1), 1) == cell
    assert printed(moco_cost(l_q - 1, l_k - 1, TEXT), 1) == cell


@pytest.mark.parametrize(("patches", "cell"), SAME_PATCH)
def test_the_patch_scaling_table_needs_196_tokens(patches: int, cell: float) -> None:
    assert printed(moco_cost(patches, patches), 2) == cell


def test_the_texts_197_tokens_do_not_give_the_patch_scaling_table() -> None:
    assert any(printed(moco_cost(n, n, TEXT), 2) != cell for n, cell in SAME_PATCH)


@pytest.mark.parametrize(("l_k", "cell"), KEY_PATCH)
def test_the_key_patch_table(l_k: int, cell: float) -> None:
    assert printed(moco_cost(64, l_k), 1) == cell


def test_simclr_trains_both_views_and_dino_its_small_crops_too() -> None:
    assert simclr_cost(196, 196) == 6
    assert simclr_cost(49, 98) == pytest.approx(3 * 0.75)
    assert dino_cost(196, 196, 6, 36) == pytest.approx(4 + 18 * 36 / 196)
    assert printed(dino_cost(196, 196, 6, 36, TEXT), 3) == 7.381
