"""The size a JPEG's header states, without decoding: crop windows need it for every sample."""

import struct

_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) in pixels as stored, before any EXIF rotation. ValueError if not found."""
    at, end = 2, len(data)
    while data[:2] == b"\xff\xd8" and at + 9 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            if height and width:
                return height, width
            break
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    raise ValueError("no JPEG frame header with a size")
