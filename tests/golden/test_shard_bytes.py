"""A shard set written from committed pictures has the committed bytes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
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
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"


def test_the_committed_set_is_untouched() -> None:
    pinned = json.loads((DATA / "shards.json").read_text())
    found = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in SHARDS.iterdir()}
    assert found == pinned, "tests/golden/data/shards was changed by hand. Restore it from git."


def test_a_manifest_written_before_is_verified(tmp_path: Path) -> None:
    failed = CHANGED.format("The reading of a shard set")
    assert accelssl("verify-shards", SHARDS, "--full", "--workers", 1) == 0, failed


def test_a_png_becomes_a_jpeg_of_the_same_picture(tmp_path: Path) -> None:
    """Pillow's encoder may differ by version, so pixels are compared and not bytes."""
    shards = written(DATA / "png", tmp_path / "shards")
    with tarfile.open(shards / "train-000000.tar") as tar:
        members = {Path(name).suffix: tar.extractfile(name) for name in tar.getnames()}
    assert list(members) == [".jpg", ".cls", ".json"], CHANGED.format("A sample's layout")
    coded = members[".jpg"]
    assert coded is not None
    with (
        Image.open(io.BytesIO(coded.read())) as image,
        Image.open(DATA / "png/train/apple/0.png") as source,
    ):
        assert image.format == "JPEG"
        difference = np.asarray(image, dtype=float) - np.asarray(source, dtype=float)
    assert np.abs(difference).mean() < 2, CHANGED.format("A transcoded picture")
