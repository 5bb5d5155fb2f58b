import copy
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from accelssl.errors import UserError
from accelssl.model.vit import Encoder
from accelssl.pipeline.compress.reference import kept_patches

TINY = "vit_tiny_patch16_224"


def tokens(images: torch.Tensor, p: int = 16) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    grid = images.shape[-1] // p
    everything = torch.arange(grid**2).repeat(len(images), 1)
    return kept_patches(images, everything, p).flatten(2), everything, p, grid


def passed(encoder: Encoder, seen: Any, is_bf16: bool) -> list[torch.Tensor | None]:
    """Features, and the gradients of the sum of their squares by all that is trained."""
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        features = encoder(*seen)
    encoder.zero_grad()
    torch.autograd.backward(features.square().sum())
    return [features, *(p.grad for p in encoder.parameters())]


@pytest.mark.parametrize("name", [TINY, "vit_small_patch16_224", "vit_base_patch16_clip_224"])
def test_uncompressed_it_is_timms_own_forward(name: str) -> None:
    encoder = Encoder(name).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = encoder.vit.forward_features(images)[:, 0]
        torch.testing.assert_close(encoder(*tokens(images)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [TINY, "deit3_small_patch16_224"])
def test_with_learned_positions_too_it_is_timms_own_forward(name: str) -> None:
    encoder = Encoder(name, False, learns_positions=True).eval()
    table = encoder.vit.get_parameter("pos_embed")
    assert table.requires_grad and float(table.detach().std()) == pytest.approx(0.02, rel=0.03)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = encoder.vit.forward_features(images)[:, 0]
        torch.testing.assert_close(encoder(*tokens(images)), expected, rtol=1e-4, atol=1e-4)


def test_learned_positions_are_those_of_the_kept_patches() -> None:
    encoder = Encoder(TINY, learns_positions=True).eval()
    values, kept = torch.randn(2, 3, 768), torch.tensor([3, 17, 60]).expand(2, 3)
    with torch.no_grad():
        few, elsewhere = encoder(values, kept, 30, 8), encoder(values, kept - 1, 30, 8)
        encoder.vit.get_parameter("pos_embed")[0, 1:].zero_()
        nowhere = encoder(values, kept, 30, 8)
    assert not torch.allclose(few, elsewhere, atol=1e-4)
    assert not torch.allclose(few, nowhere, atol=1e-4)


def test_stochastic_depth_rises_to_its_rate_and_can_be_left_out() -> None:
    encoder = Encoder(TINY, drop_path=0.22)
    for branch in ("drop_path1", "drop_path2"):
        names = [f"blocks.{i}.{branch}.kept" for i in range(12)]
        rates = [1 - float(encoder.vit.get_buffer(name)) for name in names]
        assert rates == pytest.approx([0.02 * i for i in range(12)], abs=1e-6)
    assert encoder.vit.state_dict().keys() == Encoder(TINY).vit.state_dict().keys()
    seen = torch.randn(8, 3, 768), torch.tensor([1, 2, 3]).expand(8, 3), 48, 5
    assert not torch.equal(encoder(*seen), encoder(*seen))
    encoder.leave_out_drop_path()
    assert torch.equal(encoder(*seen), encoder(*seen))


@pytest.mark.parametrize(
    ("name", "options", "is_bf16", "programs"),
    [
        (TINY, {}, False, 3),
        (TINY, {"freeze_patch_embed": False, "drop_path": 0.1}, True, 3),
        pytest.param(
            *(TINY, {"freeze_patch_embed": False, "learns_positions": True}, True, 2),
            marks=pytest.mark.slow,
        ),
        pytest.param("deit3_small_patch16_224", {}, True, 3, marks=pytest.mark.slow),
    ],
)
def test_compiled_it_is_a_few_programs_for_each_length_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    is_bf16: bool,
    programs: int,
) -> None:
    counted = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    torch._dynamo.reset()
    encoder = Encoder(name, **options)
    compiled = copy.deepcopy(encoder)
    compiled.compile_blocks()
    for lengths, patches in enumerate((3, 5), start=1):
        seen = torch.randn(4, patches, 768), torch.arange(patches).expand(4, -1), 48, 5
        ours, plain = (passed(e, seen, is_bf16) for e in (compiled, encoder))
        torch.testing.assert_close(ours, plain)
        passed(compiled, seen, is_bf16)
        assert counted.frame_count == lengths * programs


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
