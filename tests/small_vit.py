"""A ViT that trains in no time, for tests in which a network must be one of timm's by name."""

from typing import Any

import timm
from timm.models import register_model
from torch import nn

NAME = "accelssl_small_vit"


@register_model
def accelssl_small_vit(pretrained: bool = False, **options: Any) -> nn.Module:
    """Two blocks 64 wide, for 224 px: 1/40 of vit_tiny's weights."""
    network: nn.Module = timm.create_model("test_vit", img_size=224, depth=2, **options)
    return network
