"""The tags of a TIFF file or an EXIF block, which is a small TIFF."""

import struct
from typing import NamedTuple

SHORT = 3  # the type of 16-bit numbers
# Bytes of one value of each type of a tag, by the type's number.
_TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)


class TiffTag(NamedTuple):
    """A tag: its number, the type of its values by number, and how many values it has."""

    number: int
    kind: int
    values: int
    copied_bytes: int
    """Number of bytes that Pillow copies as the value."""


def tiff_tags(tiff: bytes) -> list[TiffTag]:
    """Return the tags of a TIFF or EXIF block's first directory; none without a directory."""
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
        TiffTag(number, kind, values, min(values * _value_bytes(kind), max(len(tiff) - where, 0)))
        for number, kind, values, where in struct.iter_unpack(order + entry, entries)
    ]


def _value_bytes(kind: int) -> int:
    return _TYPE_BYTES[kind] if kind < len(_TYPE_BYTES) else 0


def copy_much(tags: list[TiffTag], size_bytes: int) -> bool:
    """Return True if the tags add up to far more bytes than their block has.

    Pillow copies the value of each, and thousands can point to the same megabytes.
    """
    return sum(tag.copied_bytes for tag in tags) > 4 * size_bytes + 100_000
