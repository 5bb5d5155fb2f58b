"""The EXIF orientation of a picture, and turning the picture upright."""

from PIL import Image

from accelssl.shards.images.tiff_tags import SHORT, copy_much, tiff_tags

UPRIGHT = 1
_TAG = 0x0112
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def exif_orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation from 1 to 8, or None for a broken EXIF block."""
    block = image.info.get("exif", b"")
    try:
        tags = tiff_tags(block.removeprefix(b"Exif\0\0"))
        own = [(tag.kind, tag.values) for tag in tags if tag.number == _TAG]
        # Where the tag is malformed or comes twice, Pillow and other readers part.
        if copy_much(tags, len(block)) or own not in ([], [(SHORT, 1)]):
            return None
        Image.Exif().load(block)  # getexif() may have failed before, and is then silent
        orientation = image.getexif().get(_TAG, UPRIGHT)
    except Exception:  # a broken block can raise anything
        return None
    return orientation if orientation in _TO_UPRIGHT else UPRIGHT


def upright(image: Image.Image, orientation: int | None) -> Image.Image:
    """Turn an image with this `exif_orientation` upright."""
    turn = _TO_UPRIGHT.get(orientation or UPRIGHT)
    return image if turn is None else image.transpose(turn)
