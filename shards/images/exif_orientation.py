"""Which way up a picture is, as its EXIF block says, and how to turn it upright."""

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
    """The EXIF orientation from 1 to 8; None where the EXIF block is broken."""
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
    """The picture of an image whose `exif_orientation` that is, turned upright."""
    turn = _TO_UPRIGHT.get(orientation or UPRIGHT)
    return image if turn is None else image.transpose(turn)
