"""Whether an image of a foreign tar looks the same to every reader, without decoding it."""

import io

from PIL import Image

from accelssl.pipeline.image_check import MAX_PIXELS
from accelssl.pipeline.jpeg_header import jpeg_size, why_not_plain

_ORIENTATION = 0x0112
_TURNED = range(2, 9)


def why_not_alike(data: bytes) -> str | None:
    """None for an image that `check_image` would keep if it decodes, else what is wrong with it.

    That is a plain JPEG (see `why_not_plain`) of one picture that is upright: some readers turn it
    as its EXIF orientation says, and others do not.
    """
    reason = why_not_plain(data)
    if reason is not None:
        return reason
    height, width = jpeg_size(data)
    if height * width > MAX_PIXELS:
        return f"more than {MAX_PIXELS} pixels"
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            # getexif() may have failed before, and is then silent.
            Image.Exif().load(image.info.get("exif", b""))
            form, orientation = image.format, image.getexif().get(_ORIENTATION)
    except Exception:  # Pillow raises whatever a broken block makes it stumble over
        return "broken EXIF"
    if form != "JPEG":
        return str(form)
    return "EXIF orientation" if orientation in _TURNED else None
