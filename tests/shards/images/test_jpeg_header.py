import io

import numpy as np
import pytest
from PIL import Image

from accelssl.shards.images.jpeg_header import jpeg_size


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
