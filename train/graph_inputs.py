"""Inputs of a CUDA graph: views in static buffers, which are filled before each replay."""

from collections.abc import Hashable, Sequence

import torch

from accelssl.model.tokens import Tokens
from accelssl.pipeline import loader


def places_like(views: Sequence[Tokens]) -> tuple[loader.Tokens, ...]:
    """Return uninitialised buffers for views of the same shapes."""
    return tuple(
        loader.Tokens(
            torch.empty_like(view.values_NLV),
            torch.empty_like(view.keep_idx_NL),
            view.p,
            view.grid,
        )
        for view in views
    )


def fill(places: Sequence[Tokens], views: Sequence[Tokens]) -> None:
    """Copy the views into the buffers `places`, on the current stream."""
    for place, view in zip(places, views, strict=True):
        place.values_NLV.copy_(view.values_NLV)
        place.keep_idx_NL.copy_(view.keep_idx_NL)


def shapes(views: Sequence[Tokens]) -> Hashable:
    """Return the shapes of the views. One graph can read all views with equal shapes."""
    return tuple((*view.values_NLV.shape, view.p, view.grid) for view in views)
