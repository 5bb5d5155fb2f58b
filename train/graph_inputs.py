"""What a CUDA graph reads: views in places of their own, which are filled before each replay."""

from collections.abc import Hashable, Sequence

import torch

from accelssl.model.tokens import Tokens
from accelssl.pipeline import loader


def places_like(views: Sequence[Tokens]) -> tuple[loader.Tokens, ...]:
    """Memory for views of the same shapes, not filled yet."""
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
    """Copy the views there, in the order of the current stream."""
    for place, view in zip(places, views, strict=True):
        place.values_NLV.copy_(view.values_NLV)
        place.keep_idx_NL.copy_(view.keep_idx_NL)


def shapes(views: Sequence[Tokens]) -> Hashable:
    """What views must have in common to be read by one graph."""
    return tuple((*view.values_NLV.shape, view.p, view.grid) for view in views)
