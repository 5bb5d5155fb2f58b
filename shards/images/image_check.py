"""Check of one image file before sharding: keep its bytes, transcode it, or refuse it.

Whatever is kept decodes in full with Pillow and looks the same to every reader: an 8-bit gray or
YCbCr JPEG, upright, with nothing in it that decoders disagree about.
"""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from accelssl.shards.images.coded_data import codes_its_picture
from accelssl.shards.images.exif_orientation import exif_orientation, upright
from accelssl.shards.images.image_header import UnusableImage, kept_data_ends, opened_image
from accelssl.shards.images.jpeg_header import NotPlain
from accelssl.shards.images.smaller import SMALLER_QUALITY, make_smaller, why_smaller

__all__ = ["JPEG_QUALITY", "CheckedImage", "UnusableImage", "check_image"]

JPEG_QUALITY = 100

_GRAY_MODES = ("1", "L", "LA", "La")
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """A JPEG that decodes, and why it is not the source's bytes (None when it is)."""

    jpeg: bytes
    transcoded_because: str | None


def check_image(
    data: bytes, max_side: int | None = None, short_side: int | None = None
) -> CheckedImage:
    """Return the JPEG to store for an image file's bytes.

    Plain upright JPEGs (see `kept_data_ends`) whose data codes exactly their picture keep their
    bytes. Any other image that decodes becomes an upright JPEG of quality 100 without chroma
    subsampling, gray if the source is gray. Only the first picture of many is stored, without
    transparency. Measured on photographs, drawings and noise, colours differ by at most 0.5 of 255
    levels on average over a picture, by at most 2 levels in 99% of its values (photographs: 99.8%)
    and by at most 4 in any, because of the rounding to YCbCr. Gray differs by at most 2 levels.

    A picture with a longer side over `max_side` pixels, or a shorter side over `short_side` pixels
    (each at least 1), is shrunk until it keeps both limits. It gets a Lanczos filter, the shape of
    Pillow's thumbnail, and quality 95. The limits do not change other pictures.

    Raises UnusableImage for what does not decode to the end, and, before anything is decoded, for
    what `opened_image` refuses: more than MAX_PIXELS pixels, and more.
    """
    with opened_image(data) as image:
        too_large = why_smaller(image.size, max_side, short_side)
        reason = too_large or _why_transcode(data, image)
        if reason is None:
            return CheckedImage(data, None)
        image.load()
        pixels = upright(_gray_or_rgb(image), exif_orientation(image))
        if too_large:
            make_smaller(pixels, max_side, short_side)
        pixels.info.clear()  # Pillow would store a comment
        buffer = io.BytesIO()
        quality = SMALLER_QUALITY if too_large else JPEG_QUALITY
        pixels.save(buffer, "JPEG", quality=quality, subsampling=0)
        return CheckedImage(buffer.getvalue(), reason)


def _why_transcode(data: bytes, image: Image.Image) -> str | None:
    try:
        data_ends = kept_data_ends(data, image)
    except NotPlain as reason:
        return str(reason)
    return None if codes_its_picture(image, data, data_ends) else "damaged data"


def _gray_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableImage("floating-point pixels have no agreed range")
    if image.mode in _SIXTEEN_BIT_MODES:
        # convert() would clip at 255 instead of scaling.
        return Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    return image.convert("L" if image.mode in _GRAY_MODES else "RGB")
