"""Checks of an image file's header before decoding.

Writing and adopting shards use the same checks.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from accelssl.shards.images.exif_orientation import UPRIGHT, exif_orientation
from accelssl.shards.images.jpeg_header import NotPlain
from accelssl.shards.images.plain_jpeg import plain_data_ends
from accelssl.shards.images.tiff_tags import copy_much, tiff_tags

# By content, never by name. Pillow knows many more, some of which run other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
# Pillow's own threshold for a decompression bomb; ImageNet's largest picture has a third of it.
MAX_PIXELS = 89_478_485
# A progressive JPEG goes over its picture once for each scan; encoders make about ten.
MAX_SCANNED_PIXELS = 100 * MAX_PIXELS

_TILE_SIZE = (322, 323)  # tags: width, height


class UnusableImage(Exception):
    """The image cannot go into a shard; its text says why, the same on every run."""


@contextmanager
def opened_image(data: bytes) -> Iterator[Image.Image]:
    """Open the image in a file's bytes, without decoding, if decoding is safe.

    Raises UnusableImage for a file that is no image, and for more than MAX_PIXELS pixels or
    MAX_SCANNED_PIXELS pixels times scans. Every other error while the image is open, except
    NotPlain, becomes UnusableImage too.
    """
    if not data:
        raise UnusableImage("the file is empty")
    try:
        if data[:2] in (b"II", b"MM") and copy_much(tiff_tags(data), len(data)):
            raise UnusableImage("tags that overlap")
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _refuse_bombs(data, image)
            yield image
    except (UnusableImage, NotPlain, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnusableImage(_why_unknown(data)) from None
    except Image.DecompressionBombError:
        raise UnusableImage(f"more than {MAX_PIXELS} pixels") from None
    except Exception as error:
        # Pillow's decoders raise whatever a broken file makes them stumble over: OSError,
        # SyntaxError, struct.error, IndexError ... One broken file must never end the job.
        raise UnusableImage(_stable_text(error)) from error


def kept_data_ends(data: bytes, image: Image.Image) -> tuple[int, ...]:
    """Return the end of each run of coded data in an image whose bytes may be kept.

    The image must be a plain JPEG (see `plain_data_ends`) of one upright picture: only
    some readers apply an EXIF orientation. `image` is `data`, opened.

    Raises NotPlain, saying why, for an image that has to be transcoded.
    """
    if image.format != "JPEG":
        raise NotPlain(str(image.format))
    if image.mode not in ("RGB", "L"):
        raise NotPlain(image.mode)
    orientation = exif_orientation(image)
    if orientation is None:
        raise NotPlain("broken EXIF")
    if orientation != UPRIGHT:
        raise NotPlain("EXIF orientation")
    return plain_data_ends(data)


def _refuse_bombs(data: bytes, image: Image.Image) -> None:
    """Raise UnusableImage for an image that needs very much memory or time to decode."""
    pixels = image.width * image.height
    size = f"{image.width} x {image.height}"
    if pixels > MAX_PIXELS:
        raise UnusableImage(f"{size} is more than {MAX_PIXELS} pixels")
    if isinstance(image, TiffImageFile):
        # A tile is held in memory whole, however small the picture in it.
        width, height = (int(image.tag_v2.get(tag, 0)) for tag in _TILE_SIZE)
        if width * height > MAX_PIXELS:
            raise UnusableImage(f"tiles of {width} x {height} are more than {MAX_PIXELS} pixels")
    if image.format in ("JPEG", "MPO"):
        scans = data.count(b"\xff\xda")
        if scans * pixels > MAX_SCANNED_PIXELS:
            raise UnusableImage(f"{scans} scans of {size} pixels")
        # Huffman codes take at least a bit for each block of 8 x 8; arithmetic coding need not.
        if pixels > 512 * len(data) and not (b"\xff\xc9" in data or b"\xff\xca" in data):
            raise UnusableImage(f"too short for {size} pixels")


def _why_unknown(data: bytes) -> str:
    if not data.startswith(b"\xff\xd8"):
        return f"not an image in a known format, begins {data[:8].hex()}"
    try:
        plain_data_ends(data)
    except NotPlain as reason:
        return f"a JPEG that cannot be decoded: {reason}"
    return "a JPEG that cannot be decoded"


def _stable_text(error: Exception) -> str:
    """Return the error in one line, without memory addresses: every run writes the same list."""
    text = re.sub(r"(?: at)? 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())
