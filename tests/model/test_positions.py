import numpy as np
import pytest
import torch
from timm.layers import build_sincos2d_pos_embed
from torch.nn.functional import interpolate

from accelssl.model.positions import positions, resampled


def test_at_16_pixels_positions_are_timms_table_of_integers() -> None:
    """timm has both sines first, then both cosines; here an axis keeps its sine and cosine."""
    sin_cos_by_axis = build_sincos2d_pos_embed([14, 14], 192).view(196, 2, 2, 48)
    expected = sin_cos_by_axis.transpose(1, 2).reshape(196, 192)
    torch.testing.assert_close(positions(14, 16, 192), expected, atol=1e-5, rtol=0)


def test_a_grid_of_15_holds_the_grid_of_14() -> None:
    large = positions(15, 16, 64).view(15, 15, 64)
    torch.testing.assert_close(large[:14, :14].reshape(196, 64), positions(14, 16, 64))


@pytest.mark.parametrize("p", [20, 24, 30, 40, 48])
def test_a_large_patch_has_the_place_of_its_centre_not_of_its_number(p: int) -> None:
    base = positions(15, 16, 64).view(15, 15, 64).permute(2, 0, 1)[None]
    grid = 240 // p
    between = torch.nn.functional.interpolate(base, (grid, grid), mode="bilinear")
    ours = positions(grid, p, 64)
    likeness = torch.nn.functional.cosine_similarity(
        ours, between[0].permute(1, 2, 0).reshape(grid**2, 64), dim=1
    )
    by_number = torch.nn.functional.cosine_similarity(
        positions(grid, 16, 64), between[0].permute(1, 2, 0).reshape(grid**2, 64), dim=1
    )
    assert float(likeness.min()) > 0.95
    assert float(likeness.mean()) > float(by_number.mean()) + 0.05


@pytest.mark.parametrize(("grid", "p"), [(14, 16), (8, 30), (5, 48)])
def test_a_patch_has_the_sines_and_cosines_of_its_centre(grid: int, p: int) -> None:
    """Written out for each patch in NumPy, from the pixels that the patch covers."""
    frequencies = 10_000.0 ** (-np.arange(4) / 4)
    expected = []
    for row, column in np.ndindex(grid, grid):
        pixels = np.arange(p)
        y, x = ((p * place + pixels).mean() for place in (row, column))
        # Patch 0 of 16 pixels has its centre at pixel 7.5 and the coordinate 0.
        angles = [(centre - 7.5) / 16 * frequencies for centre in (y, x)]
        expected.append(np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)]))
    found = positions(grid, p, 16).double().numpy()
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-7)


def test_a_width_without_four_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="30"):
        positions(14, 16, 30)


@pytest.mark.parametrize("grid", [15, 12, 8, 6, 5, 14])
def test_a_learned_table_is_stretched_over_the_crop_as_torch_stretches_pictures(grid: int) -> None:
    table = torch.randn(196, 4, dtype=torch.float64)
    expected = interpolate(table.T.view(1, 4, 14, 14), size=(grid, grid), mode="bicubic")
    ours = resampled(table, grid)
    torch.testing.assert_close(ours, expected[0].flatten(1).T, rtol=1e-9, atol=1e-9)


def test_a_learned_table_of_the_same_grid_is_itself_to_the_bit_and_learns() -> None:
    table = torch.randn(196, 4, requires_grad=True)
    assert resampled(table, 14) is table
    with torch.autocast("cpu", torch.bfloat16):
        read = resampled(table, 7)
    assert read.dtype == torch.float32
    read.sum().backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None and table.grad.abs().min() > 0
