"""A shard set written from committed pictures has the committed bytes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.golden.entry import CHANGED, DATA, SHARDS, accelssl


def written(folder: Path, out: Path) -> Path:
    assert accelssl("shard-imagenet", folder, out, "--workers", 1, "--samples-per-shard", 8) == 0
    return out


def manifest_of(shards: Path) -> dict[str, Any]:
    """Return the manifest without the versions that wrote it, and without its own checksum."""
    content: dict[str, Any] = json.loads((shards / "manifest.json").read_text())
    return {k: v for k, v in content.items() if k not in ("written_by", "checksum")}


def sums_of(shards: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(shards.iterdir())
        if file.name != "manifest.json"
    }


def test_the_same_pictures_give_the_same_bytes(tmp_path: Path) -> None:
    shards = written(DATA / "pictures", tmp_path / "shards")
    pinned = json.loads((DATA / "shards.json").read_text())
    del pinned["manifest.json"]
    assert sums_of(shards) == pinned, CHANGED.format("The bytes of a shard set")
    assert manifest_of(shards) == manifest_of(SHARDS), CHANGED.format("The manifest")
    text = (shards / "manifest.json").read_text()
    plain = json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    assert text == plain, CHANGED.format("The text of a manifest")


def test_the_committed_set_is_untouched() -> None:
    pinned = json.loads((DATA / "shards.json").read_text())
    found = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in SHARDS.iterdir()}
    assert found == pinned, "tests/golden/data/shards was changed by hand. Restore it from git."


def test_a_set_written_before_passes_verification() -> None:
    failed = CHANGED.format("The reading of a shard set")
    assert accelssl("verify-shards", SHARDS, "--full", "--workers", 1) == 0, failed


def test_a_png_becomes_a_jpeg_of_the_same_picture(tmp_path: Path) -> None:
    """Compare pixels and not bytes: Pillow's encoder may differ by version."""
    shards = written(DATA / "png", tmp_path / "shards")
    with tarfile.open(shards / "train-000000.tar") as tar:
        names = tar.getnames()
        coded = tar.extractfile(names[0])
        assert coded is not None
        content = coded.read()
    suffixes = [Path(name).suffix for name in names]
    assert suffixes == [".jpg", ".cls", ".json"], CHANGED.format("The layout of a sample")
    found, source = pixels(io.BytesIO(content)), pixels(DATA / "png/train/apple/0.png")
    assert np.abs(found - source).mean() < 2, CHANGED.format("A transcoded picture")


def pixels(file: Path | io.BytesIO) -> NDArray[np.float64]:
    with Image.open(file) as image:
        return np.asarray(image, dtype=np.float64)
