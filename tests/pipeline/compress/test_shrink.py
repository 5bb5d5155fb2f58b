import numpy as np
import pytest
import torch
from timm.layers import resample_patch_embed

from accelssl.pipeline.compress.reference import shrink
from accelssl.pipeline.compress.shrink import interpolation, shrink_matrix
from accelssl.pipeline.compression import PATCH_SIDES


def responses(p: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return responses of a base, a PI-resized and a plainly resized kernel."""
    generator = torch.Generator().manual_seed(p)
    kernel = torch.randn(8, 3, 16, 16, generator=generator)
    patches = torch.rand(1, 5, 3, p, p, generator=generator)
    ours = shrink(patches)[0] @ kernel.flatten(1).T
    pi = resample_patch_embed(kernel, [p, p], interpolation="bilinear", antialias=False)
    plain = torch.nn.functional.interpolate(kernel, (p, p), mode="bilinear", align_corners=False)
    flat = patches[0].flatten(1)
    return ours, flat @ pi.flatten(1).T, flat @ plain.flatten(1).T * (16 / p) ** 2


@pytest.mark.parametrize("p", PATCH_SIDES)
def test_shrinking_the_patch_equals_timms_pi_resize_of_the_kernel(p: int) -> None:
    ours, pi, _ = responses(p)
    torch.testing.assert_close(ours, pi, rtol=1e-5, atol=1e-5 * float(pi.abs().max()))


@pytest.mark.parametrize("p", PATCH_SIDES[1:])
def test_shrinking_is_not_plain_interpolation_of_the_kernel(p: int) -> None:
    ours, _, plain = responses(p)
    assert float((ours - plain).norm() / ours.norm()) > 0.01


def test_interpolation_is_torchs_bilinear_without_antialiasing() -> None:
    for p in PATCH_SIDES:
        line = torch.randn(1, 1, 16, dtype=torch.float64)
        theirs = torch.nn.functional.interpolate(line, p, mode="linear", align_corners=False)
        np.testing.assert_allclose(interpolation(16, p) @ line[0, 0].numpy(), theirs[0, 0].numpy())


@pytest.mark.parametrize("p", PATCH_SIDES)
def test_an_enlarged_patch_shrinks_back_to_itself_and_a_constant_stays(p: int) -> None:
    np.testing.assert_allclose(shrink_matrix(p) @ interpolation(16, p), np.eye(16), atol=1e-12)
    np.testing.assert_allclose(shrink_matrix(p).sum(axis=1), 1, atol=1e-12)


def test_the_base_patch_is_not_touched() -> None:
    patches = torch.rand(2, 3, 3, 16, 16)
    assert torch.equal(shrink(patches), patches.flatten(2))
