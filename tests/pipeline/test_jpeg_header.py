import io

import numpy as np
import pytest
from PIL import Image

from accelssl.pipeline.jpeg_header import NotPlain, jpeg_size, plain_data_ends, why_not_plain


def jpeg(height: int, width: int, mode: str = "RGB", **options: object) -> bytes:
    picture = np.zeros((height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(picture).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        jpeg(37, 91),
        jpeg(91, 37, progressive=True),
        jpeg(1, 1, "L"),
        jpeg(70, 300, comment=b"x" * 500, exif=b"Exif\x00\x00" + bytes(3000)),
        jpeg(20, 30, icc_profile=bytes(70_000)),
    ],
    ids=["baseline", "progressive", "gray", "comment and exif", "long profile"],
)
def test_the_size_is_the_one_pillow_reads(data: bytes) -> None:
    assert jpeg_size(data) == Image.open(io.BytesIO(data)).size[::-1]


def test_fill_bytes_before_a_marker_are_passed_over() -> None:
    data = jpeg(12, 34)
    assert jpeg_size(data[:2] + b"\xff\xff" + data[2:]) == (12, 34)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\x89PNG" + bytes(60), jpeg(5, 5)[:100], b"\xff\xd8" + bytes(99)]
)
def test_what_has_no_frame_header_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        jpeg_size(data)


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


def test_every_cut_of_a_plain_jpeg_is_not_plain() -> None:
    data = jpeg(24, 24, progressive=True)
    assert why_not_plain(data) is None
    assert all(why_not_plain(data[:cut]) for cut in range(len(data)))
