"""The demo's pictures are real, repeatable, and validate on parts that training never saw."""

import hashlib
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards
from accelssl.shards.write import demo_photographs
from accelssl.shards.write.demo_photographs import CLASSES, DemoPictures, Tile, write_demo_pictures
from accelssl.shards.write.shard_imagenet import shard_images

pytest.importorskip("skimage")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> DemoPictures:
    root = tmp_path_factory.mktemp("demo") / "pictures"
    return write_demo_pictures(root, train_tiles=9, val_tiles=4, side_px=96)


def covered(tiles: list[Tile]) -> np.ndarray:
    mask = np.zeros((2000, 2000), bool)
    for tile in tiles:
        mask[tile.top : tile.top + tile.side, tile.left : tile.left + tile.side] = True
    return mask


@pytest.mark.parametrize("name", CLASSES)
def test_no_pixel_is_in_both_splits(pictures: DemoPictures, name: str) -> None:
    mine = [tile for tile in pictures.tiles if tile.photograph == name]
    train = covered([tile for tile in mine if tile.split == "train"])
    val = covered([tile for tile in mine if tile.split == "val"])
    assert train.any()
    assert val.any()
    assert not (train & val).any()


def test_a_picture_shows_its_tile_and_nothing_around_it(pictures: DemoPictures) -> None:
    data = importlib.import_module("skimage.data")
    photograph = Image.fromarray(data.astronaut())
    tiles = [tile for tile in pictures.tiles if tile.photograph == "astronaut"]
    files = sorted((pictures.root / "train" / "astronaut").iterdir())
    for tile, path in zip(tiles, files, strict=False):
        box = (tile.left, tile.top, tile.left + tile.side, tile.top + tile.side)
        expected = np.asarray(photograph.crop(box).resize((96, 96), Image.Resampling.LANCZOS))
        error = np.abs(np.asarray(Image.open(path), np.int16) - expected)
        assert error.mean() < 5  # JPEG


def test_a_validation_tile_does_not_change_with_the_training_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def black_training_region(path: Path) -> Image.Image:
        image = load(path)
        black = 0 if image.mode == "L" else (0, 0, 0)
        for left, right in demo_photographs.strips("train", image.width):
            image.paste(black, (left, 0, right, image.height))
        return image

    load = demo_photographs._load
    write_demo_pictures(tmp_path / "as_it_is", train_tiles=1, val_tiles=2, side_px=64)
    monkeypatch.setattr(demo_photographs, "_load", black_training_region)
    write_demo_pictures(tmp_path / "black", train_tiles=1, val_tiles=2, side_px=64)
    for path in (tmp_path / "as_it_is" / "val").rglob("*.jpg"):
        other = tmp_path / "black" / path.relative_to(tmp_path / "as_it_is")
        assert path.read_bytes() == other.read_bytes()


def test_every_class_has_the_pictures_asked_for(pictures: DemoPictures) -> None:
    for split, count in (("train", 9), ("val", 4)):
        assert {p.name for p in (pictures.root / split).iterdir()} == set(CLASSES)
        for name in CLASSES:
            files = sorted((pictures.root / split / name).glob("*.jpg"))
            assert len(files) == count
            assert len({path.read_bytes() for path in files}) == count
            assert {Image.open(path).size for path in files} == {(96, 96)}
    assert len(pictures.tiles) == 13 * len(CLASSES)
    assert len(CLASSES) >= 12


def test_most_pictures_show_something(pictures: DemoPictures) -> None:
    blank = [
        path
        for path in pictures.root.rglob("*.jpg")
        if np.asarray(Image.open(path).convert("L")).std() < 4
    ]
    assert len(blank) <= 0.02 * len(pictures.tiles)


def test_the_seed_decides_the_pictures(pictures: DemoPictures, tmp_path: Path) -> None:
    def digest(root: Path) -> str:
        files = sorted(root.rglob("*.jpg"))
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()

    for seed in (0, 1):
        write_demo_pictures(tmp_path / str(seed), seed=seed, train_tiles=9, val_tiles=4, side_px=96)
    assert digest(tmp_path / "0") == digest(pictures.root)
    assert digest(tmp_path / "1") != digest(pictures.root)


def test_the_pictures_become_shards_without_loss(pictures: DemoPictures, tmp_path: Path) -> None:
    report = shard_images(pictures.root, tmp_path / "shards", workers=1)
    assert {name: split.quarantined for name, split in report.splits.items()} == {
        "train": 0,
        "val": 0,
    }
    shards = open_shards(tmp_path / "shards")
    assert shards.classes == tuple(sorted(CLASSES))
    assert len(shards.split("train")) == 9 * len(CLASSES)


@pytest.mark.parametrize("package", ["skimage", "sklearn"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        demo_photographs, "find_spec", lambda name: None if name == package else found(name)
    )
    with pytest.raises(UserError, match=package) as caught:
        write_demo_pictures(tmp_path / "out")
    assert 'pip install "accelssl[demo]"' in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="is not empty"):
        write_demo_pictures(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_no_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 validation tiles"):
        write_demo_pictures(tmp_path / "out", val_tiles=0)
