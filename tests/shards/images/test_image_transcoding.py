"""What is stored of images that are not kept: upright, no longer than asked, close in colour."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from accelssl.shards.images.image_check import CheckedImage, UnusableImage, check_image
from accelssl.shards.images.plain_jpeg import why_not_plain
from tests.shards.images.jpeg_parts import (
    APP1,
    BASELINE,
    EXIF_TURNED,
    Dali,
    encoded,
    first,
    picture,
    rgb,
    segment,
    with_orientation,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def noise(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def lettering() -> Image.Image:
    image = Image.new("RGB", (160, 90), "white")
    draw = ImageDraw.Draw(image)
    for line, colour in enumerate(("red", "blue", "black", "#0c0", "#fc0", "#609")):
        draw.text((3, 3 + 14 * line), "Handgloves 0123456789", fill=colour)
    return image


CONTENT: dict[str, Callable[[], Image.Image]] = {
    "photograph": lambda: picture(1, 160, 120),
    "noise": lambda: noise(2),
    "pure colours": lambda: noise(3).point(lambda v: 255 * (v > 127)),
    "lettering": lettering,
    "palette": lambda: noise(4).quantize(16),
    "gray": lambda: noise(5).convert("L"),
    "gray with alpha": lambda: noise(6).convert("LA"),
    "black and white": lambda: noise(7).convert("1"),
}


@pytest.mark.parametrize("name", CONTENT)
def test_a_transcoded_picture_is_as_close_as_a_jpeg_can_be(name: str) -> None:
    image = CONTENT[name]()
    checked = check_image(encoded(image, "PNG"))
    assert checked.transcoded_because == "PNG"
    assert why_not_plain(checked.jpeg) is None
    error = np.abs(rgb(checked.jpeg) - np.asarray(image.convert("RGB"), np.int16))
    if image.mode in ("L", "LA", "1"):
        assert Image.open(io.BytesIO(checked.jpeg)).mode == "L"
        assert error.max() <= 2
    assert error.mean() <= 0.5
    assert (error <= 2).mean() >= 0.99
    assert error.max() <= 4


def test_other_colours_become_what_pillow_makes_of_them() -> None:
    translucent = picture(1).convert("RGBA")
    translucent.putalpha(70)
    files = {
        "CMYK": encoded(picture(2).convert("CMYK")),
        "PNG": encoded(translucent, "PNG"),
        "TIFF": encoded(picture(3).convert("YCbCr"), "TIFF"),
        "WEBP": encoded(picture(4), "WEBP"),
        "GIF": encoded(picture(5).quantize(64), "GIF"),
        "BMP": encoded(picture(6), "BMP"),
        "PPM": encoded(picture(7), "PPM"),
    }
    for reason, data in files.items():
        checked = check_image(data)
        assert checked.transcoded_because == reason
        assert np.abs(rgb(checked.jpeg) - rgb(data)).max() <= 4


def test_nothing_but_pixels_is_carried_over() -> None:
    image = picture(1).quantize(64)
    commented = encoded(image, "GIF", comment=b"x" * 100_000)
    assert check_image(commented).jpeg == check_image(encoded(image, "GIF")).jpeg


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(form: str) -> None:
    ramp = np.tile(np.linspace(0, 65535, 64, dtype=np.uint16), (48, 1))
    stored = rgb(check_image(encoded(Image.fromarray(ramp), form)).jpeg)
    assert np.abs(stored - (ramp >> 8)[..., None].astype(np.int16)).max() <= 2


def test_pixels_without_an_agreed_range_are_refused() -> None:
    with pytest.raises(UnusableImage, match="floating-point"):
        check_image(encoded(Image.new("F", (8, 8), 0.5), "TIFF"))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_turned_picture_is_stored_upright(form: str, orientation: int) -> None:
    data = with_orientation(picture(orientation), orientation, form)
    checked = check_image(data)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert checked.transcoded_because == ("EXIF orientation" if form == "JPEG" else form)
    assert not Image.open(io.BytesIO(checked.jpeg)).getexif()
    assert np.abs(rgb(checked.jpeg) - np.asarray(expected, np.int16)).max() <= 4


@pytest.mark.parametrize("orientation", [0, 1, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: int) -> None:
    data = with_orientation(picture(1), orientation)
    assert check_image(data) == CheckedImage(data, None)
    (pixels,) = Dali(adjust_orientation=True).decode([data])
    assert pixels is not None and np.array_equal(pixels, rgb(data))


def test_a_broken_exif_block_loses_nothing_but_itself() -> None:
    broken = BASELINE[:2] + segment(APP1, b"Exif\0\0" + b"\xff" * 20) + BASELINE[2:]
    checked = check_image(broken)
    assert checked.transcoded_because == "broken EXIF"
    assert np.abs(rgb(checked.jpeg) - rgb(BASELINE)).max() <= 4


@pytest.mark.parametrize(
    "old_new", [(b"\0\x03\0\0\0\1", b"\0\x03\0\0\0\2"), (b"\0\x03", b"\0\x0f")]
)
def test_an_orientation_that_readers_may_differ_on_is_taken_away(old_new: Any) -> None:
    exif = first(EXIF_TURNED, APP1)
    malformed = exif.replace(b"\x01\x12" + old_new[0], b"\x01\x12" + old_new[1])
    assert malformed != exif
    checked = check_image(BASELINE[:2] + malformed + BASELINE[2:])
    assert checked.transcoded_because == "broken EXIF"
    assert np.abs(rgb(checked.jpeg) - rgb(BASELINE)).max() <= 4


@pytest.mark.parametrize(
    ("width", "height", "max_side"),
    [(61, 43, 60), (43, 61, 30), (300, 7, 32), (7, 300, 32), (300, 1, 10), (50, 50, 1), (9, 8, 8)],
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_long_picture_is_made_as_long_as_asked(
    width: int, height: int, max_side: int, form: str
) -> None:
    data = encoded(picture(width, width, height), form)
    checked = check_image(data, max_side)
    assert checked.transcoded_because == f"longer side over {max_side}"
    expected = Image.open(io.BytesIO(data))
    shape = expected.copy()
    shape.thumbnail((max_side, max_side))
    stored = Image.open(io.BytesIO(checked.jpeg))
    assert stored.size == shape.size
    assert max(stored.size) == max_side
    resized = expected.resize(shape.size, Image.Resampling.LANCZOS)
    assert checked.jpeg == encoded(resized, quality=95, subsampling=0)


def test_a_long_turned_picture_is_upright_when_its_shape_is_chosen() -> None:
    data = with_orientation(picture(1, 61, 43), 6)
    checked = check_image(data, 40)
    upright = Image.open(io.BytesIO(data)).transpose(Image.Transpose.ROTATE_270)
    upright.thumbnail((40, 40), Image.Resampling.LANCZOS, reducing_gap=None)
    assert upright.size == (28, 40)
    assert checked.jpeg == encoded(upright, quality=95, subsampling=0)


@pytest.mark.parametrize("max_side", [61, 62, 10_000])
def test_a_picture_that_is_not_too_long_is_judged_as_ever(max_side: int) -> None:
    for data in (encoded(picture(1)), encoded(picture(1), "PNG"), with_orientation(picture(1), 3)):
        assert check_image(data, max_side) == check_image(data)


def test_a_long_picture_that_does_not_decode_is_refused() -> None:
    with pytest.raises(UnusableImage, match="truncated"):
        check_image(BASELINE[:-500], 32)
