"""A shard set of pictures at hand, for a benchmark on a machine that has none.

The photographs of `accelssl demo` come in squares of about a hundred pixels. Twelve of them side by
side make a picture of 500 x 375 pixels (or upright) with as much to decode as a photograph of that
size; 128 such pictures are linked until there are enough files.
"""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from accelssl.errors import UserError
from accelssl.shards.write.demo_photographs import write_demo_pictures
from accelssl.shards.write.shard_imagenet import shard_images

TILE, COLUMNS, ROWS = 125, 4, 3
PICTURES, QUALITY = 128, 98
ONE_WORKER = 1000


def make_set(folder: Path, files: int, progress: Callable[[str], None]) -> tuple[Path, str]:
    """A set of so many files in an empty folder: its path, and what to call its pictures.

    UserError where the photographs are not installed.
    """
    progress("pictures")
    pictures = folder / "pictures"
    sizes_bytes = write_pictures(pictures, folder / "tiles")
    progress(f"shards of {files} files")
    source = repeated(pictures, folder / "linked", files)
    # Starting processes takes longer than packing a few files.
    shard_images(source, folder / "shards", workers=1 if files <= ONE_WORKER else None)
    shutil.rmtree(folder / "linked")
    mean_kb = sum(sizes_bytes) / len(sizes_bytes) / 1e3
    return folder / "shards", (
        f"{files:,} files of {PICTURES} pictures of {TILE * COLUMNS}x{TILE * ROWS} px, mosaics of "
        f"the photographs in scikit-image and scikit-learn, {mean_kb:.0f} kB a file"
    )


def write_pictures(folder: Path, tiles_folder: Path) -> list[int]:
    """Write PICTURES mosaics; the sizes of the files in bytes."""
    try:
        write_demo_pictures(tiles_folder, train_tiles=24, val_tiles=8, side_px=TILE)
    except UserError as error:
        raise UserError(error.what, f"{error.remedy} Or name a set with --shards.") from None
    tiles = [np.asarray(_rgb(path)) for path in sorted(tiles_folder.rglob("*.jpg"))]
    shutil.rmtree(tiles_folder)
    folder.mkdir(parents=True)
    rng, sizes_bytes = np.random.default_rng(0), []
    for number in range(PICTURES):
        chosen = rng.integers(len(tiles), size=(ROWS, COLUMNS))
        if number % 4 == 3:  # upright, as a quarter of ImageNet is
            chosen = chosen.reshape(COLUMNS, ROWS)
        rows = [np.concatenate([tiles[i] for i in row], axis=1) for row in chosen]
        path = folder / f"{number:03d}.jpg"
        Image.fromarray(np.concatenate(rows)).save(path, quality=QUALITY)
        sizes_bytes.append(path.stat().st_size)
    return sizes_bytes


def repeated(pictures: Path, folder: Path, files: int) -> Path:
    """Link the pictures until there are `files` files in ten classes; return the source folder."""
    kept = folder / "pictures"
    kept.mkdir(parents=True)
    originals = list(_originals(pictures, kept))
    for n in range(files):
        into = folder / "source" / "train" / f"class{n % 10}"
        into.mkdir(parents=True, exist_ok=True)
        os.link(originals[n % len(originals)], into / f"{n:07d}.jpg")
    return folder / "source"


def _originals(pictures: Path, kept: Path) -> Iterator[Path]:
    if pictures.is_dir():
        found = (path.read_bytes() for path in sorted(pictures.rglob("*")) if path.is_file())
        yield from (_put(kept, n, data) for n, data in enumerate(found))
        return
    with tarfile.open(pictures) as tar:
        members = (tar.extractfile(member) for member in tar if member.isfile())
        for n, file in enumerate(file for file in members if file):
            yield _put(kept, n, file.read())


def _put(folder: Path, number: int, data: bytes) -> Path:
    path = folder / f"{number:06d}"
    path.write_bytes(data)
    return path


def _rgb(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")
