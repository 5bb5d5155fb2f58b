"""Judges one image file before it goes into a shard: keep its bytes, transcode it, or refuse it.

Whatever is kept decodes in full with Pillow and looks the same to every reader: an 8-bit gray or
YCbCr JPEG, upright, with nothing in it that decoders disagree about.
"""

import io
import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from accelssl.pipeline.jpeg_header import NotPlain, plain_data_ends

# By content, never by name. Pillow knows many more, some of which run other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
# Pillow's own threshold for a decompression bomb; ImageNet's largest picture has a third of it.
MAX_PIXELS = 89_478_485
# A progressive JPEG goes over its picture once for each scan; encoders make about ten.
MAX_SCANNED_PIXELS = 100 * MAX_PIXELS
JPEG_QUALITY = 100

_STUFFING = b"\xff\x00"
_ORIENTATION = 0x0112
_UPRIGHT = 1
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GRAY_MODES = ("1", "L", "LA", "La")
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_TILE_SIZE = (322, 323)  # tags: width, height
_SHORT = 3
# Bytes of one value of each type of a TIFF tag, by the type's number.
_TIFF_TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)


class UnusableImage(Exception):
    """The image cannot go into a shard; its text says why, the same on every run."""


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """A JPEG that decodes, and why it is not the source's bytes (None when it is)."""

    jpeg: bytes
    transcoded_because: str | None


def check_image(data: bytes, max_side: int | None = None) -> CheckedImage:
    """The JPEG to store for an image file's bytes.

    Plain upright JPEGs (see `plain_data_ends`) whose data codes exactly their picture keep their
    bytes. Anything else that decodes becomes a JPEG of quality 100 without chroma subsampling, gray
    where the source is gray, rotated as its EXIF orientation says; only the first picture of many,
    and no transparency. How close that comes is measured, not forced: on photographs, drawings and
    noise, colours are off by at most 0.5 of 255 levels on average over a picture, by at most 2 in
    99% of its values (photographs: 99.8%) and by at most 4 in any, as YCbCr is rounded to 8 bits
    too; gray by at most 2.

    With `max_side`, at least 1 pixel, a picture whose longer side exceeds it is made that long with
    a Lanczos filter, to the shape of Pillow's thumbnail, and then encoded likewise.

    Raises UnusableImage for what does not decode to the end, and, before anything is decoded, for
    more than MAX_PIXELS pixels and more than MAX_SCANNED_PIXELS pixels times scans.
    """
    if not data:
        raise UnusableImage("the file is empty")
    try:
        return _judge(data, max_side)
    except UnusableImage:
        raise
    except UnidentifiedImageError:
        raise UnusableImage(f"not an image in a known format, begins {data[:8].hex()}") from None
    except Image.DecompressionBombError:
        raise UnusableImage(f"more than {MAX_PIXELS} pixels") from None
    except Exception as error:
        # Pillow's decoders raise whatever a broken file makes them stumble over: OSError,
        # SyntaxError, struct.error, IndexError ... One broken file must never end the job.
        raise UnusableImage(_stable_text(error)) from error


def _judge(data: bytes, max_side: int | None) -> CheckedImage:
    if data[:2] in (b"II", b"MM") and _copy_much(_tags(data), len(data)):
        raise UnusableImage("tags that overlap")
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _refuse_bombs(data, image)
        is_long = max_side is not None and max(image.size) > max_side
        reason = f"longer side over {max_side}" if is_long else _why_transcode(data, image)
        if reason is None:
            return CheckedImage(data, None)
        image.load()
        pixels = _upright(_gray_or_rgb(image), _orientation(image))
        if is_long and max_side is not None:
            # Without the gap, which lets a box filter do most of the shrinking.
            pixels.thumbnail((max_side, max_side), Image.Resampling.LANCZOS, reducing_gap=None)
        pixels.info.clear()  # Pillow would store a comment
        buffer = io.BytesIO()
        pixels.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return CheckedImage(buffer.getvalue(), reason)


def _refuse_bombs(data: bytes, image: Image.Image) -> None:
    """UnusableImage for what would take very much memory or time to decode."""
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


def _why_transcode(data: bytes, image: Image.Image) -> str | None:
    if image.format != "JPEG":
        return str(image.format)
    if image.mode not in ("RGB", "L"):
        return image.mode
    orientation = _orientation(image)
    if orientation is None:
        return "broken EXIF"
    if orientation != _UPRIGHT:
        return "EXIF orientation"
    try:
        data_ends = plain_data_ends(data)
    except NotPlain as reason:
        return str(reason)
    return None if _codes_its_picture(data, data_ends, image) else "damaged data"


def _codes_its_picture(data: bytes, data_ends: tuple[int, ...], image: Image.Image) -> bool:
    """Whether a plain JPEG's data decodes to its picture, no more and no less of it.

    libjpeg does not fail for data that ends early, goes on for too long or holds codes that do not
    exist: it makes up the rest, and GPU decoders make up other pixels, or fail. Pillow does not say
    that it happened, but how much of its input the decoder has used tells.
    """
    decoder, start = _PartwiseDecoder(image), 0
    try:
        for end in data_ends:
            if not decoder.reads_to_the_end(data[start:end]):
                return False
            start = end
        # A progressive picture is complete when the end marker has been seen.
        return decoder.is_done or (decoder.feed(data[start : start + 2]) and decoder.is_done)
    except OSError:
        return False


class _PartwiseDecoder:
    """Pillow's decoder of a JPEG, given a bit at a time. Fills the image it is made for."""

    def __init__(self, image: Image.Image) -> None:
        image.load_prepare()  # type: ignore[attr-defined]
        name, extents, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        # As PIL.ImageFile.Parser does, which does not take JPEGs.
        self._decoder = Image._getdecoder(image.mode, name, arguments, image.decoderconfig)  # type: ignore[attr-defined]
        self._decoder.setimage(image.im, extents)
        self._waiting = b""
        self.is_done = False

    def feed(self, part: bytes) -> bool:
        """Take more of the file; whether the decoder has used all it got. OSError if it fails."""
        if self.is_done:
            return True
        self._waiting += part
        used, error = self._decoder.decode(self._waiting)
        if error < 0:
            raise OSError(error)
        self.is_done = used < 0
        self._waiting = b"" if self.is_done else self._waiting[used:]
        return not self._waiting

    def reads_to_the_end(self, part: bytes) -> bool:
        """Take all up to a marker; whether the data in it ends there, give or take some 8 bytes.

        While the decoder expects data it uses nothing before it has several bytes. As soon as it
        expects a marker it is done with the picture, or drops whatever comes, byte for byte. That
        must not be so before the last byte, and must be so after it. The stuffing serves as bytes
        to look ahead to: as data it would be ones only, which are no code.
        """
        last = len(part) - (2 if part.endswith(_STUFFING) else 1)
        had_used_all = self.feed(part[:last])
        if self.is_done:
            return False
        has_used_all = self.feed(part[last:])
        if has_used_all and had_used_all and not self.is_done:
            return False
        return self.is_done or (self.feed(8 * _STUFFING) and self.feed(_STUFFING))


def _orientation(image: Image.Image) -> int | None:
    """The EXIF orientation from 1 to 8; None where the EXIF block is broken."""
    block = image.info.get("exif", b"")
    try:
        tags = _tags(block.removeprefix(b"Exif\0\0"))
        own = [(tag.kind, tag.values) for tag in tags if tag.number == _ORIENTATION]
        # Where the tag is malformed or comes twice, Pillow and other readers part.
        if _copy_much(tags, len(block)) or own not in ([], [(_SHORT, 1)]):
            return None
        Image.Exif().load(block)  # getexif() may have failed before, and is then silent
        orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # a broken block can raise anything
        return None
    return orientation if orientation in _TO_UPRIGHT else _UPRIGHT


def _upright(image: Image.Image, orientation: int | None) -> Image.Image:
    turn = _TO_UPRIGHT.get(orientation or _UPRIGHT)
    return image if turn is None else image.transpose(turn)


def _gray_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableImage("floating-point pixels have no agreed range")
    if image.mode in _SIXTEEN_BIT_MODES:
        # convert() would clip at 255 instead of scaling.
        return Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    return image.convert("L" if image.mode in _GRAY_MODES else "RGB")


class _Tag(NamedTuple):
    number: int
    kind: int
    values: int
    copied_bytes: int
    """How much of the block Pillow takes for its value."""


def _tags(tiff: bytes) -> list[_Tag]:
    """The tags of a TIFF or EXIF block's first directory, as far as there is one."""
    order = "<" if tiff[:2] == b"II" else ">"
    is_big = tiff[2:4] in (b"\x2b\0", b"\0\x2b")
    head, count, entry = ("8xQ", "Q", "HHQQ") if is_big else ("4xI", "H", "HHII")
    try:
        (at,) = struct.unpack_from(order + head, tiff)
        (tags,) = struct.unpack_from(order + count, tiff, at)
    except struct.error:
        return []
    at += struct.calcsize(order + count)
    step = struct.calcsize(order + entry)
    entries = tiff[at : at + min(tags, (len(tiff) - at) // step) * step]
    return [
        _Tag(number, kind, values, min(values * _value_bytes(kind), max(len(tiff) - where, 0)))
        for number, kind, values, where in struct.iter_unpack(order + entry, entries)
    ]


def _value_bytes(kind: int) -> int:
    return _TIFF_TYPE_BYTES[kind] if kind < len(_TIFF_TYPE_BYTES) else 0


def _copy_much(tags: list[_Tag], size_bytes: int) -> bool:
    """Whether tags add up to far more bytes than their block has.

    Pillow copies the value of each, and thousands can point to the same megabytes.
    """
    return sum(tag.copied_bytes for tag in tags) > 4 * size_bytes + 100_000


def _stable_text(error: Exception) -> str:
    """The error in one line, without memory addresses: quarantine lists compare between runs."""
    text = re.sub(r"(?: at)? 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())
