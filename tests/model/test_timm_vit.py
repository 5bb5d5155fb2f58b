"""Models are taken or refused by what they are, and what is suggested instead is taken."""

import re

import pytest
import torch

from accelssl.errors import UserError
from accelssl.model.timm_vit import create_vit


def refused(name: str, drop_path: float = 0.0) -> UserError:
    """The error about a model, made without memory for its weights."""
    with pytest.raises(UserError) as error, torch.device("meta"):
        create_vit(name, drop_path)
    return error.value


@pytest.mark.parametrize(
    "name",
    [
        "vit_smal_patch16_224",
        "vit_huge",
        "deit_tiny",
        "ViT-B/16",
        "",
        "resnet10t",
        "vit_tiny_patch16_384",
        "vit_base_patch16_gap_224",
        "vit_base_patch16_rope_224",
    ],
)
def test_every_model_suggested_is_one_that_is_taken(name: str) -> None:
    error = refused(name)
    assert name in error.what
    suggested = re.findall(r"[\w.]+_224", error.remedy)
    assert len(suggested) == 3 and name not in suggested
    for other in suggested:
        with torch.device("meta"):
            assert create_vit(other).patch_embed.patch_size == (16, 16)


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant() -> None:
    assert "example vit_small_patch16_224," in refused("vit_smal_patch16_224").remedy
    assert "example deit_tiny_patch16_224," in refused("deit_tiny_patch_16_224").remedy


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_384",  # timm's own forward takes no 224 px
        "beit3_base_patch16_224",  # averages patches, whatever its CLS token
        "deit_tiny_distilled_patch16_224",
        "vit_base_patch32_224",
    ],
)
def test_a_model_whose_feature_is_not_its_cls_token_at_224_px_is_refused(name: str) -> None:
    assert "224 px" in refused(name).what


def test_what_timm_cannot_make_is_refused_with_its_reason() -> None:
    assert "nope" in refused("vit_tiny_patch16_224.nope").what
    assert "drop_path_rate" in refused("vgg11", 0.1).what
