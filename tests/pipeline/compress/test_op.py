import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.pipeline import views
from accelssl.pipeline.compress.op import augment_patchify
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.compression import PATCH_SIDES, Compression
from accelssl.pipeline.draws.augmentation import Column, augmentation, identity
from accelssl.pipeline.draws.drops import kept_patches


def inputs(n: int, p: int, drop: float, size: int = 240) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(p)
    crops = torch.from_numpy(rng.integers(0, 256, (n, size, size, 3)).astype(np.uint8))
    params = torch.from_numpy(augmentation(views.simclr(size)[0], 0, 0, 0, np.arange(n)))
    c = Compression(p, drop)
    kept = kept_patches(0, 0, np.arange(n), 0, c.grid(size) ** 2, c.keep(size))
    return crops, params, torch.from_numpy(kept)


@pytest.mark.parametrize("p", PATCH_SIDES)
def test_every_patch_side_gives_tokens_of_768_values(p: int) -> None:
    crops, params, kept = inputs(2, p, 0.5)
    tokens = augment_patchify(crops, params, kept, p)
    assert tokens.shape == (2, Compression(p, 0.5).keep(240), 768)
    assert tokens.dtype == torch.float32 and bool(tokens.isfinite().all())


def test_a_token_is_its_patch_in_the_order_of_a_convolution_weight() -> None:
    crops, _, kept = inputs(2, 16, 0.75)
    tokens = augment_patchify(crops, torch.from_numpy(identity(2)), kept, 16)
    for n, place in [(0, 3), (1, 20)]:
        row, column = divmod(int(kept[n, place]), 15)
        for c, y, x in [(0, 0, 0), (1, 5, 2), (2, 15, 15)]:
            level = float(crops[n, row * 16 + y, column * 16 + x, c]) / 255
            expected = (level - IMAGENET_MEAN[c]) / IMAGENET_STD[c]
            assert float(tokens[n, place, c * 256 + y * 16 + x]) == pytest.approx(
                expected, abs=1e-5
            )


def test_kept_patches_are_places_in_the_flipped_crop() -> None:
    crops, _, _ = inputs(1, 16, 0)
    params = torch.from_numpy(identity(1))
    everything = torch.arange(225)[None]
    plain = augment_patchify(crops.flip(2), params, everything, 16)
    params[0, Column.FLIP] = 1
    assert torch.equal(augment_patchify(crops, params, everything, 16), plain)


@pytest.mark.parametrize("p", [16, 30])
def test_a_kept_token_does_not_change_when_dropped_pixels_do(p: int) -> None:
    crops, params, kept = inputs(4, p, 0.5)
    params[:, Column.SIGMA], params[:, Column.CONTRAST] = 0, 1  # those two look further
    before = augment_patchify(crops, params, kept, p)
    grid = 240 // p
    for n in range(4):
        for patch in set(range(grid**2)) - set(kept[n].tolist()):
            row, column = divmod(patch, grid)
            if params[n, Column.FLIP]:
                column = grid - 1 - column
            crops[n, row * p : (row + 1) * p, column * p : (column + 1) * p] = 77
    torch.testing.assert_close(augment_patchify(crops, params, kept, p), before, rtol=0, atol=1e-5)


def test_keeping_fewer_patches_gives_the_same_tokens_for_those_kept() -> None:
    crops, params, _ = inputs(3, 24, 0)
    everything = torch.arange(100).repeat(3, 1)
    few = torch.tensor([[99, 0, 5], [7, 7, 7], [1, 2, 3]])
    whole = augment_patchify(crops, params, everything, 24)
    chosen = whole.gather(1, few[..., None].expand(-1, -1, 768))
    torch.testing.assert_close(augment_patchify(crops, params, few, 24), chosen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_float32_result_rounded_once(dtype: torch.dtype) -> None:
    crops, params, kept = inputs(2, 20, 0.5)
    exact = augment_patchify(crops, params, kept, 20)
    assert torch.equal(augment_patchify(crops, params, kept, 20, dtype), exact.to(dtype))


def test_the_op_is_a_well_behaved_custom_op() -> None:
    torch.library.opcheck(
        torch.ops.accelssl.augment_patchify.default,
        (*inputs(2, 30, 0.5, 60), 30, torch.bfloat16, "auto"),
    )


def test_it_compiles_without_a_graph_break() -> None:
    crops, params, kept = inputs(2, 30, 0.5, 60)

    def doubled(c: Tensor, a: Tensor, k: Tensor) -> Tensor:
        return augment_patchify(c, a, k, 30) * 2

    compiled = torch.compile(doubled, backend="eager", fullgraph=True)
    assert torch.equal(compiled(crops, params, kept), doubled(crops, params, kept))


def test_inputs_that_break_the_contract_are_named() -> None:
    crops, params, kept = inputs(2, 30, 0.5)
    for broken, message in [
        ((crops.float(), params, kept, 30), "uint8"),
        ((crops[:, :, :200], params, kept, 30), "200"),
        ((crops, params[:, :3], kept, 30), "3"),
        ((crops, params, kept.int(), 30), "int32"),
        ((crops, params, kept, 32), "32"),
        ((crops[:, :224, :224], params, kept, 24), "224"),
    ]:
        with pytest.raises(ValueError, match=message):
            augment_patchify(*broken)


def test_an_index_outside_the_grid_is_an_error() -> None:
    crops, params, kept = inputs(2, 30, 0.5)
    for index in (64, -1):
        kept[1, 0] = index
        with pytest.raises((IndexError, ValueError)):
            augment_patchify(crops, params, kept, 30)
