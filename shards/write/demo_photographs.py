"""A small labelled set of real photographs, for a first run without a download.

The photographs come inside the packages scikit-image and scikit-learn. Each is a class, and the
pictures of the class are random tiles of it. A photograph is cut into five upright strips: training
tiles come from the first, third and fifth, validation tiles from the second and fourth. So the two
splits share no pixel, and yet show the same things.

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

import numpy as np
from PIL import Image, ImageStat

from accelssl.errors import UserError

_SKIMAGE = ("skimage", "data")
_SKLEARN = ("sklearn", "datasets/images")
SPLITS = ("train", "val")
_STRIPS = {"train": (0, 2, 4), "val": (1, 3)}
_STRIP_COUNT = 5


@dataclass(frozen=True)
class _Photograph:
    """A file of a package; its class is the file's name."""

    package: tuple[str, str]
    file: str

    @property
    def name(self) -> str:
        return Path(self.file).stem


def strips(split: str, width: int) -> list[tuple[int, int]]:
    """Return the columns of a split's tiles in a photograph of this width: (left, right)."""
    borders = [round(width * i / _STRIP_COUNT) for i in range(_STRIP_COUNT + 1)]
    return [(borders[i], borders[i + 1]) for i in _STRIPS[split]]


_PHOTOGRAPHS = (
    _Photograph(_SKIMAGE, "astronaut.png"),
    _Photograph(_SKIMAGE, "brick.png"),
    _Photograph(_SKIMAGE, "camera.png"),
    _Photograph(_SKIMAGE, "chelsea.png"),
    _Photograph(_SKLEARN, "china.jpg"),
    _Photograph(_SKIMAGE, "coffee.png"),
    _Photograph(_SKIMAGE, "coins.png"),
    _Photograph(_SKLEARN, "flower.jpg"),
    _Photograph(_SKIMAGE, "grass.png"),
    _Photograph(_SKIMAGE, "gravel.png"),
    _Photograph(_SKIMAGE, "hubble_deep_field.jpg"),
    _Photograph(_SKIMAGE, "ihc.png"),
    _Photograph(_SKIMAGE, "retina.jpg"),
    _Photograph(_SKIMAGE, "rocket.jpg"),
)
CLASSES = tuple(photograph.name for photograph in _PHOTOGRAPHS)
# A tile's side, relative to the narrowest strip: the same range for both splits, so that things
# have the same size in both.
_TILE_SCALE = (0.6, 1.0)
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
    """The result of `write_demo_pictures`: an image folder, and the source of each picture."""

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
    for tile in _random_tiles(image.size, photograph.name, split, rng):
        # Cut out first: resize(box=...) would filter in pixels from outside the box.
        picture = image.crop((tile.left, tile.top, tile.left + tile.side, tile.top + tile.side))
        if ImageStat.Stat(picture.convert("L")).stddev[0] >= _BLANK_LEVELS:
            break
    return tile, picture


def _random_tiles(
    size: tuple[int, int], photograph: str, split: str, rng: np.random.Generator
) -> Iterator[Tile]:
    width, height = size
    largest = min(height, width // _STRIP_COUNT)
    choices = strips(split, width)
    for _ in range(_TRIES):
        x0, x1 = choices[rng.integers(len(choices))]
        side = int(largest * rng.uniform(*_TILE_SCALE))
        left = int(rng.integers(x0, x1 - side, endpoint=True))
        top = int(rng.integers(0, height - side, endpoint=True))
        yield Tile(photograph, split, left, top, side)


def _folder(package: tuple[str, str]) -> Path:
    """Find the photographs of a package without importing it, which takes seconds."""
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
