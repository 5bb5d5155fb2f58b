"""Names of image files, and the parts of ImageNet's names.

ImageNet's are n01440764_10026.JPEG (train: class and number) and ILSVRC2012_val_00000001.JPEG. Some
packagings append the class: n01440764_10026_n01440764.JPEG.
"""

import os
import re
from typing import NamedTuple

_JPEG_EXTENSIONS = {".jpg", ".jpeg", ".jpe", ".jfif"}
_OTHER_EXTENSIONS = {".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif"}
EXTENSIONS = frozenset(_JPEG_EXTENSIONS | _OTHER_EXTENSIONS)
_WNID = re.compile("n[0-9]{8}")
_IMAGENET = re.compile(
    r"(?P<plain>(?P<train>n[0-9]{8})_[0-9]+|ILSVRC2012_val_(?P<val>[0-9]{8}))"
    r"(?P<appended>_n[0-9]{8})?(?P<extension>\.[^.]*)"
)


class ImageName(NamedTuple):
    """The parts of a file name. A missing part is None.

    `name` is without an appended class, so that it is the same in every packaging.
    """

    name: str
    train_wnid: str | None
    val_number: int | None
    appended_wnid: str | None


def is_image(name: str) -> bool:
    """Return True if the extension is that of an image and the file is not hidden."""
    extension = os.path.splitext(name)[1].lower()  # noqa: PTH122 - 1.28M of them
    return extension in EXTENSIONS and not name.startswith(".")


def is_wnid(name: str) -> bool:
    """Return True for a WordNet synset, such as n01440764."""
    return _WNID.fullmatch(name) is not None


def parse_name(name: str) -> ImageName:
    """Split the file name of an image into its parts."""
    match = _IMAGENET.fullmatch(name)
    if match is None:
        return ImageName(name, None, None, None)
    plain, train, val, appended, extension = match.groups()
    number = None if val is None else int(val)
    if appended is None:
        return ImageName(name, train, number, None)
    return ImageName(plain + extension, train, number, appended[1:])


def with_appended(name: str, wnid: str) -> str:
    """Return the file name from which `parse_name` took this appended class."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    return f"{stem}_{wnid}{extension}"
