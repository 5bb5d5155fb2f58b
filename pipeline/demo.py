"""A small labelled set of real photographs, for a first run on any machine without a download.

The photographs come inside the packages scikit-image and scikit-learn. Each is a class, and the
pictures of the class are random tiles of it. Training tiles come from 60% of a photograph, and
validation tiles from the other 40%, so that the two share no pixel.

Sources and licences, as the packages' documentation states them:
- scikit-image: astronaut (NASA, public domain), brick and gravel (cc0textures.com, CC0), camera
  (Lav Varshney, CC0), chelsea the cat (Stefan van der Walt, CC0), coffee (Rachel Michetti, CC0),
  coins (Brooklyn Museum, no known copyright restrictions), grass (linolafett, CC0),
  hubble_deep_field (NASA, public domain), ihc, a stained section of colonic glands (CMMI, no known
  copyright restrictions), retina (Mikael Haggstrom, CC0), rocket (SpaceX, public domain);
- scikit-learn: china (danielbuechele, CC BY 2.0), flower (vultilion, CC BY 2.0).
Left out: text, drawings and computed images; clock, which is blurred to almost nothing; moon and
the motorcycles, which come without a stated licence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageStat

from accelssl.errors import UserError

_SKIMAGE = ("skimage", "data")
_SKLEARN = ("sklearn", "datasets/images")
SPLITS = ("train", "val")
_TRAIN_SHARE = 0.6


@dataclass(frozen=True)
class _Photograph:
    """A file of a package; its class is the file's name. Training tiles come from the first 60% of
    its columns or rows: whichever leaves some of the subject on both sides."""

    package: tuple[str, str]
    file: str
    cut: Literal["columns", "rows"]

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def region(self, split: str, width: int, height: int) -> tuple[int, int, int, int]:
        """The part for a split's tiles: left, top, right, bottom."""
        border = round(_TRAIN_SHARE * (width if self.cut == "columns" else height))
        first, last = (0, border) if split == "train" else (border, None)
        if self.cut == "columns":
            return first, 0, last or width, height
        return 0, first, width, last or height


_PHOTOGRAPHS = (
    _Photograph(_SKIMAGE, "astronaut.png", "rows"),
    _Photograph(_SKIMAGE, "brick.png", "columns"),
    _Photograph(_SKIMAGE, "camera.png", "columns"),
    _Photograph(_SKIMAGE, "chelsea.png", "columns"),
    _Photograph(_SKLEARN, "china.jpg", "rows"),
    _Photograph(_SKIMAGE, "coffee.png", "rows"),
    _Photograph(_SKIMAGE, "coins.png", "columns"),
    _Photograph(_SKLEARN, "flower.jpg", "rows"),
    _Photograph(_SKIMAGE, "grass.png", "columns"),
    _Photograph(_SKIMAGE, "gravel.png", "columns"),
    _Photograph(_SKIMAGE, "hubble_deep_field.jpg", "columns"),
    _Photograph(_SKIMAGE, "ihc.png", "columns"),
    _Photograph(_SKIMAGE, "retina.jpg", "columns"),
    _Photograph(_SKIMAGE, "rocket.jpg", "columns"),
)
CLASSES = tuple(photograph.name for photograph in _PHOTOGRAPHS)
# A tile's side, relative to the largest square that fits the smaller of a photograph's two regions:
# the same range for both splits, so that things have the same size in both.
_TILE_SCALE = (0.5, 0.9)
# Standard deviation of the gray values, in 8-bit levels, below which a tile shows nothing (the
# black around the retina). Some photographs have calm parts, so the search is short.
_BLANK_LEVELS = 6.0
_TRIES = 20
_JPEG_QUALITY = 92


@dataclass(frozen=True)
class Tile:
    """A picture of the set: a square of a photograph, in that photograph's pixels."""

    photograph: str
    split: str
    left: int
    top: int
    side: int


@dataclass(frozen=True)
class DemoPictures:
    """What `write_demo_pictures` wrote: an image folder, and where each picture comes from."""

    root: Path
    classes: tuple[str, ...]
    tiles: tuple[Tile, ...]


def write_demo_pictures(
    root: Path,
    *,
    seed: int = 0,
    train_tiles: int = 72,
    val_tiles: int = 24,
    side_px: int = 256,
) -> DemoPictures:
    """Write train/<class>/*.jpg and val/<class>/*.jpg, side_px x side_px, under an empty folder.

    The counts are for each class. The same seed and counts give the same pictures. Raises UserError
    when a package or photograph is missing, or the folder is not empty or cannot be written.
    """
    if min(train_tiles, val_tiles, side_px) < 1:
        raise UserError(
            f"{train_tiles} training and {val_tiles} validation tiles of {side_px} pixels.",
            "Ask for at least one of each.",
        )
    paths = [Path(_folder(photograph.package), photograph.file) for photograph in _PHOTOGRAPHS]
    tiles: list[Tile] = []
    try:
        if root.exists() and any(root.iterdir()):
            raise UserError(f"{root} is not empty.", "Choose an empty folder.")
        for number, (photograph, path) in enumerate(zip(_PHOTOGRAPHS, paths, strict=True)):
            image = _load(path)
            for split, count in zip(SPLITS, (train_tiles, val_tiles), strict=True):
                rng = np.random.default_rng([seed, number, SPLITS.index(split)])
                folder = root / split / photograph.name
                folder.mkdir(parents=True)
                for n in range(count):
                    tile, picture = _draw(image, photograph, split, rng)
                    resized = picture.resize((side_px, side_px), Image.Resampling.LANCZOS)
                    resized.save(folder / f"{photograph.name}_{n:03d}.jpg", quality=_JPEG_QUALITY)
                    tiles.append(tile)
    except OSError as error:
        raise UserError(
            f"{root} cannot be written: {error.strerror}.", "Choose another folder."
        ) from error
    return DemoPictures(root, CLASSES, tuple(tiles))


def _draw(
    image: Image.Image, photograph: _Photograph, split: str, rng: np.random.Generator
) -> tuple[Tile, Image.Image]:
    for tile in _random_tiles(image.size, photograph, split, rng):
        # Cut out first: resize(box=...) would filter in pixels from outside the box.
        picture = image.crop((tile.left, tile.top, tile.left + tile.side, tile.top + tile.side))
        if ImageStat.Stat(picture.convert("L")).stddev[0] >= _BLANK_LEVELS:
            break
    return tile, picture


def _random_tiles(
    size: tuple[int, int], photograph: _Photograph, split: str, rng: np.random.Generator
) -> Iterator[Tile]:
    regions = [photograph.region(name, *size) for name in SPLITS]
    largest = min(min(x1 - x0, y1 - y0) for x0, y0, x1, y1 in regions)
    x0, y0, x1, y1 = photograph.region(split, *size)
    for _ in range(_TRIES):
        side = int(largest * rng.uniform(*_TILE_SCALE))
        left = int(rng.integers(x0, x1 - side, endpoint=True))
        top = int(rng.integers(y0, y1 - side, endpoint=True))
        yield Tile(photograph.name, split, left, top, side)


def _folder(package: tuple[str, str]) -> Path:
    """Where a package keeps its photographs; found without importing it, which takes seconds."""
    name, inside = package
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(f"The package that holds the photographs, {name}, is not installed.")
    return Path(spec.submodule_search_locations[0], inside)


def _load(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("L" if image.mode == "L" else "RGB")
    except OSError:
        raise _missing(f"The photograph {path} is missing or broken.") from None


def _missing(what: str) -> UserError:
    return UserError(what, 'Install the photographs with: pip install "accelssl[demo]"')
