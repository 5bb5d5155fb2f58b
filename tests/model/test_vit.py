import subprocess
import sys
from typing import Any

import pytest
import timm
import torch

from accelssl.errors import UserError
from accelssl.model.vit import Encoder
from accelssl.pipeline.compress.reference import kept_patches

TINY = "vit_tiny_patch16_224"


def tokens(images: torch.Tensor, p: int = 16) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    grid = images.shape[-1] // p
    everything = torch.arange(grid**2).repeat(len(images), 1)
    return kept_patches(images, everything, p).flatten(2), everything, p, grid


@pytest.mark.parametrize("name", [TINY, "vit_small_patch16_224", "vit_base_patch16_clip_224"])
def test_uncompressed_it_is_timms_own_forward(name: str) -> None:
    encoder = Encoder(name).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = encoder.vit.forward_features(images)[:, 0]
        torch.testing.assert_close(encoder(*tokens(images)), expected, rtol=1e-4, atol=1e-4)


def test_its_state_dict_loads_into_a_plain_timm_model() -> None:
    encoder = Encoder(TINY).eval()
    plain: Any = timm.create_model(TINY, num_classes=0).eval()
    plain.load_state_dict(encoder.vit.state_dict())
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = plain.forward_features(images)[:, 0]
        torch.testing.assert_close(encoder(*tokens(images)), expected, rtol=1e-4, atol=1e-4)


def test_the_order_of_the_kept_tokens_does_not_matter() -> None:
    encoder = Encoder(TINY).eval()
    values, keep_idx, p, grid = tokens(torch.randn(2, 3, 240, 240))
    shuffled = torch.randperm(225)[:50]
    kept = shuffled.sort().values
    with torch.no_grad():
        a = encoder(values[:, shuffled], keep_idx[:, shuffled], p, grid)
        b = encoder(values[:, kept], keep_idx[:, kept], p, grid)
        elsewhere = encoder(values[:, kept], keep_idx[:, kept].flip(1), p, grid)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(b, elsewhere, atol=1e-3)


def test_the_patch_projection_and_positions_are_not_trained() -> None:
    frozen = {n for n, p in Encoder(TINY).vit.named_parameters() if not p.requires_grad}
    assert frozen == {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert Encoder(TINY, freeze_patch_embed=False).vit.patch_embed.proj.weight.requires_grad


def test_queries_keys_and_values_start_as_three_square_matrices() -> None:
    weight = Encoder(TINY).vit.state_dict()["blocks.0.attn.qkv.weight"]
    bound = (6 / (192 + 192)) ** 0.5
    assert 0.98 * bound < float(weight.abs().max()) <= bound


@pytest.mark.parametrize(
    "name", ["no_such_model", "resnet18", "vit_base_patch32_224", "vit_base_patch16_gap_224"]
)
def test_a_model_that_cannot_take_tokens_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=name):
        Encoder(name)


def test_the_model_needs_neither_dali_nor_triton() -> None:
    code = (
        "import sys; sys.modules['nvidia.dali'] = None; import accelssl.model.simclr; "
        "assert not any(m.startswith('accelssl.pipeline') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
