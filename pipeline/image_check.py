"""Judges one image file before it goes into a shard: keep its bytes, transcode it, or refuse it.

Whatever is kept decodes in full with Pillow and looks the same to every reader: an 8-bit gray or
YCbCr JPEG, upright, with nothing in its header that decoders disagree about.
"""

import io
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from accelssl.pipeline.jpeg_header import why_not_plain

# By content, never by name. Pillow knows many more, some of which run other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
# Pillow's own threshold for a decompression bomb; ImageNet's largest picture has a third of it.
MAX_PIXELS = 89_478_485
JPEG_QUALITY = 95
_ORIENTATION = 0x0112
_UPRIGHT = 1
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


class UnusableImage(Exception):
    """The image cannot go into a shard; its text says why, the same on every run."""


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """A JPEG that decodes, and why it is not the source's bytes (None when it is)."""

    jpeg: bytes
    transcoded_because: str | None


def check_image(data: bytes) -> CheckedImage:
    """The JPEG to store for an image file's bytes.

    Plain upright JPEGs (see `why_not_plain`) keep their bytes. Anything else that decodes becomes
    an RGB JPEG of quality 95 without chroma subsampling, rotated as its EXIF orientation says.
    Raises UnusableImage for what does not decode to the end, and for more than MAX_PIXELS pixels.
    """
    if not data:
        raise UnusableImage("the file is empty")
    try:
        return _decode_and_judge(data)
    except UnusableImage:
        raise
    except UnidentifiedImageError:
        raise UnusableImage(f"not an image in a known format, begins {data[:8].hex()}") from None
    except Exception as error:
        # Pillow's decoders raise whatever a broken file makes them stumble over: OSError,
        # SyntaxError, struct.error, IndexError ... One broken file must never end the job.
        raise UnusableImage(_stable_text(error)) from error


def _decode_and_judge(data: bytes) -> CheckedImage:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise UnusableImage(f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels")
        image.load()
        reason = _why_transcode(data, image)
        if reason is None:
            return CheckedImage(data, None)
        buffer = io.BytesIO()
        _to_rgb(_upright(image)).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return CheckedImage(buffer.getvalue(), reason)


def _why_transcode(data: bytes, image: Image.Image) -> str | None:
    if image.format != "JPEG":
        return str(image.format)
    if image.mode not in ("RGB", "L"):
        return image.mode
    try:
        orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # as above: anything can be raised by a broken block
        return "broken EXIF"
    if orientation != _UPRIGHT:
        return "EXIF orientation"
    return why_not_plain(data)


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # an unreadable EXIF block: there is no rotation to apply
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableImage("floating-point pixels have no agreed range")
    if image.mode in _SIXTEEN_BIT_MODES:
        # convert() would clip at 255 instead of scaling.
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    return image.convert("RGB")


def _stable_text(error: Exception) -> str:
    """The error in one line, without memory addresses: quarantine lists compare between runs."""
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())
