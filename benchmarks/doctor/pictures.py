"""Synthetic pictures for timing the decoder and for checking the whole data path."""

import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from accelssl.shards.write.shard_imagenet import shard_images

SHOWN = 12
_DISTINCT = 128
_WIDTH, _HEIGHT = 500, 375  # ImageNet's most common size


@cache
def typical_jpegs() -> tuple[NDArray[np.uint8], ...]:
    """Return baseline JPEGs as large as ImageNet's: 500 x 375, about 110 kB.

    All are different: a decoder is no faster for having seen one before, but caches are.
    """
    rng = np.random.default_rng(0)
    grain = rng.integers(-30, 31, (_HEIGHT + _DISTINCT, _WIDTH, 3), dtype=np.int16)
    found = []
    for i in range(_DISTINCT):
        smooth = np.asarray(_smooth(rng, _WIDTH, _HEIGHT), dtype=np.int16)
        picture = (smooth + grain[i : i + _HEIGHT]).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=91)
        found.append(np.frombuffer(file.getvalue(), dtype=np.uint8))
    return tuple(found)


def write_shown_set(folder: Path) -> Path:
    """Write a shard set of SHOWN wide and tall pictures in split train; return its folder."""
    rng = np.random.default_rng(1)
    for i in range(SHOWN):
        size = (400, 300) if i % 2 else (300, 420)
        path = folder / "pictures" / "train" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        _smooth(rng, *size).save(path, quality=95)
    shard_images(folder / "pictures", folder / "shown", workers=1)
    return folder / "shown"


def _smooth(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Blobs of colour: steep enough that a crop one pixel off is told, smooth enough that decoders
    agree."""
    coarse = rng.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
