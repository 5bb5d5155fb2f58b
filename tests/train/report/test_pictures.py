"""The picture grid shows the kept patches and blanks the others."""

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from accelssl.train.report.pictures import picture_blocks


def test_dropped_patches_are_blank_and_kept_ones_shown(tmp_path: Path) -> None:
    crops = np.full((2, 3, 60, 60, 3), (255, 0, 0), np.uint8)
    keep = np.broadcast_to(np.array([0, 2, 4, 8]), (2, 3, 4))
    np.savez(tmp_path / "pictures.npz", crops=crops, p=np.array([20]), keep_0=keep)
    whole, stage = picture_blocks(tmp_path / "pictures.npz")
    assert len(whole.images) == len(stage.images) == 3
    assert stage.title == "Stage 1: patches of 20 pixels, 4 of 9 kept"
    image = Image.open(BytesIO(base64.b64decode(stage.images[0].partition(",")[2])))
    red = np.asarray(image.convert("RGB")).astype(int)
    side = red.shape[1] // 3
    middles = (np.arange(3) * (side + 1) + side // 2).clip(max=red.shape[1] - 1)
    is_red = red[middles][:, middles, 1] < 60
    # keep 0, 2, 4, 8 in a grid of 3 x 3, row by row
    assert is_red.ravel().nonzero()[0].tolist() == [0, 2, 4, 8]


def test_views_that_keep_different_numbers_are_shown_each_with_its_own(tmp_path: Path) -> None:
    """As MoCo has them: a query of two patches, a whole key."""
    crops = np.full((2, 3, 40, 40, 3), (255, 0, 0), np.uint8)
    keep = np.broadcast_to(np.array([[[0, 3, -1, -1]], [[0, 1, 2, 3]]]), (2, 3, 4))
    np.savez(tmp_path / "pictures.npz", crops=crops, p=np.array([20]), keep_0=keep)
    _, stage = picture_blocks(tmp_path / "pictures.npz")
    assert stage.title == "Stage 1: patches of 20 pixels, 2 and 4 of 4 kept"
    image = Image.open(BytesIO(base64.b64decode(stage.images[0].partition(",")[2])))
    green = np.asarray(image.convert("RGB"))[..., 1].astype(int)
    side = green.shape[1] // 2
    near, far = side // 2, side + side // 2
    below = green.shape[0] - green.shape[1]
    is_red = [
        [green[top + y, x] < 60 for y in (near, far) for x in (near, far)] for top in (0, below)
    ]
    assert is_red == [[True, False, False, True], [True] * 4]


def test_many_stages_of_large_crops_stay_below_a_megabyte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stages = 8
    crops = rng.integers(0, 256, (2, 8, 240, 240, 3), dtype=np.uint8)
    keep = {f"keep_{k}": np.tile(np.arange(225), (2, 8, 1)) for k in range(stages)}
    np.savez(tmp_path / "pictures.npz", crops=crops, p=np.full(stages, 16), **keep)  # type: ignore[arg-type]
    blocks = picture_blocks(tmp_path / "pictures.npz")
    assert len(blocks) == stages + 1
    assert sum(len(image) for block in blocks for image in block.images) < 1_000_000
    if len(blocks[0].images) < 8:
        assert f"({len(blocks[0].images)} of 8 pictures)" in blocks[0].title
