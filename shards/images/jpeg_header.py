"""The segments of a JPEG (ISO/IEC 10918-1 annex B), and its size."""

import struct
from collections.abc import Iterator
from enum import IntEnum

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
STRAY = "stray bytes in the header"


class Marker(IntEnum):
    """The second byte of a marker; the first is FF."""

    DHT = 0xC4
    RST0 = 0xD0
    SOS = 0xDA
    DQT = 0xDB
    DRI = 0xDD
    APP0 = 0xE0
    APP1 = 0xE1
    APP14 = 0xEE
    APP15 = 0xEF
    COM = 0xFE


# All start-of-frame markers: C0-CF without DHT (C4), JPG (C8) and DAC (CC).
FRAMES = frozenset(range(0xC0, 0xD0)) - {Marker.DHT, 0xC8, 0xCC}


class NotPlain(ValueError):
    """Not every decoder reads this JPEG alike; the text says what is unusual, in a few words."""


def jpeg_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return (height, width) before any EXIF rotation. Raise ValueError without a size."""
    for marker, body, _ in segments(data, len(SOI)):
        if marker in FRAMES:
            if len(body) < 5:
                break
            height, width = struct.unpack_from(">HH", body, 1)
            if height and width:
                return height, width
            break
    raise ValueError("no JPEG frame header with a size")


def segments(data: bytes | memoryview, at: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (marker, body, end) of each segment from `at` up to the next scan's header.

    NotPlain where they end early.
    """
    if data[: len(SOI)] != SOI:
        raise NotPlain("not a JPEG")
    marker = 0
    while marker != Marker.SOS:
        if at + 4 > len(data) or data[at] != 0xFF:
            raise NotPlain(STRAY)
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker == 0xFF:  # fill byte, allowed before any marker
            at += 1
            continue
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or length < 2 or at + 2 + length > len(data):
            raise NotPlain(STRAY)
        yield marker, bytes(data[at + 4 : at + 2 + length]), at + 2 + length
        at += 2 + length
