"""Plain JPEGs: where their data ends. What is not plain: see test_image_check.py too."""

import io

import numpy as np
import pytest
from PIL import Image

from accelssl.shards.images.jpeg_header import NotPlain
from accelssl.shards.images.plain_jpeg import plain_data_ends, why_not_plain


def jpeg(height: int, width: int, mode: str = "RGB", **options: object) -> bytes:
    picture = np.zeros((height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(picture).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("mode", "options", "markers"),
    [
        ("RGB", {}, [0xD9]),
        ("RGB", {"restart_marker_blocks": 4}, [*range(0xD0, 0xD8), 0xD9]),
        # Pillow's six scans of a gray picture; all but the fifth have a table of their own.
        ("L", {"progressive": True}, [0xC4, 0xC4, 0xC4, 0xDA, 0xC4, 0xD9]),
    ],
)
def test_data_ends_at_the_markers_behind_it(
    mode: str, options: dict[str, object], markers: list[int]
) -> None:
    data = jpeg(96, 96, mode, **options)  # 36 units of 16 x 16 pixels
    ends = plain_data_ends(data + b"whatever follows")
    assert [data[end : end + 2] for end in ends] == [bytes([0xFF, marker]) for marker in markers]
    assert ends[-1] == len(data) - 2


def test_what_is_not_plain_is_told_with_the_reason() -> None:
    data = jpeg(8, 8).replace(b"\xff\xc0", b"\xff\xc9", 1)
    assert why_not_plain(data) == "arithmetic or lossless coding"
    with pytest.raises(NotPlain, match="arithmetic"):
        plain_data_ends(data)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_every_cut_of_a_plain_jpeg_is_not_plain(options: dict[str, object]) -> None:
    data = jpeg(24, 24, "RGB", **options)
    assert why_not_plain(data) is None
    assert all(why_not_plain(data[:cut]) for cut in range(len(data)))


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x89PNG" + bytes(60), bytes(100)])
def test_what_is_no_jpeg_is_not_plain(data: bytes) -> None:
    assert why_not_plain(data) == "not a JPEG"
