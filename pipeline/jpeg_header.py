"""What a JPEG's header says, without decoding: its size, and whether every decoder reads it alike.

Walks the marker segments in front of the first scan as ISO/IEC 10918-1 annex B lays them out. The
picture itself is not looked at: that is the full decode's job.
"""

import struct
from collections.abc import Iterator

_SOI = b"\xff\xd8"
_DHT, _DQT, _SOS, _APP14 = 0xC4, 0xDB, 0xDA, 0xEE
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
# All start-of-frame markers: C0-CF without DHT (C4), JPG (C8) and DAC (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, 0xCC}
_STRAY = "stray bytes in the header"


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) in pixels as stored, before any EXIF rotation. ValueError if not found."""
    for marker, body in _segments(data):
        if marker in _FRAMES:
            if len(body) < 5:
                break
            height, width = struct.unpack_from(">HH", body, 1)
            if height and width:
                return height, width
            break
    raise ValueError("no JPEG frame header with a size")


def why_not_plain(data: bytes) -> str | None:
    """None for a JPEG that can keep its bytes, else what is unusual about it, in a few words.

    Plain is: Huffman-coded baseline or progressive, 8 bits, gray or YCbCr, all tables and no stray
    bytes in its header. GPU decoders refuse the others, or turn them to other pixels than Pillow.
    """
    seen: set[int] = set()
    components = 0
    adobe_rgb = False
    try:
        for marker, body in _segments(data):
            seen.add(marker)
            if marker in _FRAMES:
                unusual = _why_unusual_frame(marker, body)
                if unusual:
                    return unusual
                components = body[5]
            if marker == _APP14 and body.startswith(b"Adobe") and len(body) >= 12:
                adobe_rgb = body[11] == 0
    except ValueError as reason:
        return str(reason)
    if not seen & _FRAMES or not {_DHT, _DQT} <= seen:
        return "tables missing"
    return "RGB colour space" if components == 3 and adobe_rgb else None


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(marker, body) of each segment up to the first scan's. ValueError where they end early."""
    if not data.startswith(_SOI):
        raise ValueError("not a JPEG")
    at, marker = len(_SOI), 0
    while marker != _SOS:
        if at + 4 > len(data) or data[at] != 0xFF:
            raise ValueError(_STRAY)
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker == 0xFF:  # fill byte, allowed before any marker
            at += 1
            continue
        if marker < 0xC0 or length < 2:
            raise ValueError(_STRAY)
        yield marker, data[at + 4 : at + 2 + length]
        at += 2 + length


def _why_unusual_frame(marker: int, body: bytes) -> str | None:
    if marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE):
        return "arithmetic or lossless coding"
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        return _STRAY
    if body[0] != 8:
        return f"{body[0]} bits"
    if body[5] not in (1, 3):
        return f"{body[5]} colour components"
    component_ids = body[6 : 6 + 3 * body[5] : 3]
    return "RGB colour space" if component_ids == b"RGB" else None
