"""timm models that accept tokens, by name, and suggestions for unknown names."""

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain, islice

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from accelssl.errors import UserError
from accelssl.model.positions import BASE_SIDE

USUAL = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224")
_SIZE = 224
_LIKE, _TRIED, _SHOWN = 0.3, 12, 3


def create_vit(name: str, drop_path: float = 0.0) -> VisionTransformer:
    """Return timm's VisionTransformer `name` without classifier.

    drop_path is the rate of the last block. Raise UserError for a name unknown to timm, and for a
    model other than a VisionTransformer for 224 px with patches of 16, positions, and a normed CLS
    token as its feature.
    """
    if not timm.is_model(name):
        raise UserError(f"timm has no model named {name!r}.", _remedy(name))
    try:
        model = timm.create_model(name, num_classes=0, drop_path_rate=drop_path or None)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(f"timm could not make {name} ({reason}).", _remedy(name)) from error
    if not _takes_tokens(model):
        raise UserError(
            f"{name} is not a VisionTransformer for {_SIZE} px with patches of {BASE_SIDE}, "
            "positions, and a CLS token as its feature.",
            _remedy(name),
        )
    assert isinstance(model, VisionTransformer)
    return model


def _takes_tokens(model: nn.Module) -> bool:
    return (
        isinstance(model, VisionTransformer)
        and getattr(model, "cls_token", None) is not None
        and getattr(model, "dist_token", None) is None
        and model.pos_embed is not None
        and model.patch_embed.patch_size == (BASE_SIDE, BASE_SIDE)
        and model.patch_embed.img_size == (_SIZE, _SIZE)
        and model.global_pool == "token"
        and not isinstance(model.norm, nn.Identity)
    )


def _remedy(name: str) -> str:
    known = chain(_alike(name), (usual for usual in USUAL if usual != name))
    return f"Use for example {', '.join(dict.fromkeys(islice(known, _SHOWN)))}."


def _alike(name: str) -> Iterator[str]:
    """Return accepted model names like `name`. The test creates each model without memory."""
    names = timm.list_models(f"*patch{BASE_SIDE}*_{_SIZE}*")
    for other in get_close_matches(name, names, _TRIED, _LIKE):
        try:
            with torch.device("meta"):
                model = timm.create_model(other, num_classes=0)
        except Exception:  # do not suggest models that fail here
            continue
        if other != name and _takes_tokens(model):
            yield other
