"""A (seed, epoch, sample, view) draws the same order, window, augmentation and patches for ever."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.golden.entry import CHANGED, DATA, METHODS, drawn_of_all


@pytest.fixture(scope="module")
def found() -> dict[str, NDArray[Any]]:
    return drawn_of_all()


@pytest.fixture(scope="module")
def pinned() -> dict[str, NDArray[Any]]:
    with np.load(DATA / "draws.npz") as file:
        return dict(file)


def test_the_same_things_are_drawn(
    found: dict[str, NDArray[Any]], pinned: dict[str, NDArray[Any]]
) -> None:
    assert found.keys() == pinned.keys()
    kinds = {re.sub(r"^\w+/(?=[a-z])|/\d.*", "", name) for name in pinned}
    assert kinds == {"order", "windows", "params", "params_of_many", "keep_idx"}
    assert {name.partition("/")[0] for name in pinned} == {"order", *METHODS}


def names(kind: str, pinned: dict[str, NDArray[Any]]) -> list[str]:
    return [name for name in pinned if kind in name]


@pytest.mark.parametrize("kind", ["order", "windows", "keep_idx"])
def test_whole_numbers_are_drawn_alike(
    kind: str, found: dict[str, NDArray[Any]], pinned: dict[str, NDArray[Any]]
) -> None:
    for name in names(kind, pinned):
        assert np.array_equal(found[name], pinned[name]), CHANGED.format(f"The draw {name}")
        assert found[name].dtype == pinned[name].dtype


def test_augmentations_are_drawn_alike(
    found: dict[str, NDArray[Any]], pinned: dict[str, NDArray[Any]]
) -> None:
    for name in names("params", pinned):
        same = np.allclose(found[name], pinned[name], rtol=1e-6, atol=0)
        assert same, CHANGED.format(f"The draw {name}")
