"""An image is fit for adoption as it is if packing it anew would keep its bytes."""

import contextlib
import io
import tarfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accelssl.shards.adopt.tar_judge import why_not_alike
from accelssl.shards.images.image_check import UnusableImage, check_image
from accelssl.shards.images.image_header import MAX_PIXELS

# Pillow warns of what the damage here makes of EXIF blocks and sizes.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::RuntimeWarning:PIL")
ODD_IMAGES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "odd_images.tar"


def picture() -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture(), exif=exif)


def with_segment(marker: int, body: bytes) -> bytes:
    plain = encoded(picture())
    return plain[:2] + bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body + plain[2:]


XMP = b'http://ns.adobe.com/xap/1.0/\x00<x:xmpmeta tiff:Orientation="%d"/>'

KEPT: dict[str, Callable[[], bytes]] = {
    "baseline": lambda: encoded(picture()),
    "progressive": lambda: encoded(picture(), progressive=True),
    "gray": lambda: encoded(picture().convert("L")),
    "upright by EXIF": lambda: turned(1),
    "an orientation that does not exist": lambda: turned(9),
    "upright by XMP": lambda: with_segment(0xE1, XMP % 1),
    "a comment": lambda: with_segment(0xFE, b"Exif\0\0"),
}
REFUSED: dict[str, Callable[[], bytes]] = {
    "CMYK": lambda: encoded(picture().convert("CMYK")),
    "RGB": lambda: encoded(picture(), keep_rgb=True),
    "PNG": lambda: encoded(picture(), "PNG"),
    "GIF": lambda: encoded(picture().convert("P"), "GIF"),
    "WebP": lambda: encoded(picture(), "WEBP"),
    "two pictures": lambda: encoded(picture(), "MPO", save_all=True, append_images=[picture()]),
    "turned by XMP": lambda: with_segment(0xE1, XMP % 6),
    "EXIF that is none": lambda: with_segment(0xE1, b"Exif\0\0" + b"\xff" * 20),
    "EXIF that is cut": lambda: with_segment(0xE1, b"Exif\0\0II*\0\x08"),
    "an orientation of two values": lambda: turned(6).replace(
        b"\x01\x12\0\x03\0\0\0\x01", b"\x01\x12\0\x03\0\0\0\x02"
    ),
    "an orientation that is a float": lambda: turned(6).replace(
        b"\x01\x12\0\x03", b"\x01\x12\0\x0b"
    ),
    "no end": lambda: encoded(picture())[:-2],
    "text": lambda: b"text",
    **{f"turned by EXIF {n}": partial(turned, n) for n in range(2, 9)},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_packing_would_keep_is_fit(name: str) -> None:
    data = KEPT[name]()
    assert check_image(data).transcoded_because is None
    assert why_not_alike(data) is None


@pytest.mark.parametrize("name", REFUSED)
def test_what_packing_would_change_is_not_fit(name: str) -> None:
    data = REFUSED[name]()
    with contextlib.suppress(UnusableImage):
        assert check_image(data).transcoded_because is not None
    assert why_not_alike(data)


def claiming(height: int, width: int) -> bytes:
    plain = encoded(picture())
    at = plain.index(b"\xff\xc0") + 5
    return plain[:at] + height.to_bytes(2) + width.to_bytes(2) + plain[at + 4 :]


@pytest.mark.parametrize(
    ("height", "width", "said"),
    [
        (9500, 9500, f"9500 x 9500 is more than {MAX_PIXELS} pixels"),
        (65500, 65500, f"more than {MAX_PIXELS} pixels"),
        (2000, 3000, "too short for 3000 x 2000 pixels"),
    ],
)
def test_a_picture_that_packing_refuses_for_its_size_is_not_fit(
    height: int, width: int, said: str
) -> None:
    data = claiming(height, width)
    with pytest.raises(UnusableImage, match=said):
        check_image(data)
    assert why_not_alike(data) == said


def test_what_cannot_be_opened_goes_by_few_names() -> None:
    # Findings are counted by their names: these errors of Pillow's tell the bytes.
    whole = encoded(picture())
    assert {why_not_alike(whole[:cut]) for cut in range(2, 200, 7)} == {"stray bytes in the header"}


def damaged(rng: np.random.Generator, whole: bytes) -> bytes:
    """Some bytes changed near the beginning, and sometimes the end cut off."""
    data = bytearray(whole)
    for at in rng.integers(0, min(len(data), 700), rng.integers(1, 4)):
        data[at] = rng.integers(256)
    return bytes(data[: rng.integers(1, 6 * len(data))])


@pytest.mark.parametrize("seed", range(4))
def test_damage_to_headers_is_judged_as_packing_judges_it(seed: int) -> None:
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    for source in (KEPT["baseline"](), KEPT["progressive"](), turned(1), turned(6)):
        for _ in range(150):
            data = damaged(rng, source)
            reason = why_not_alike(data)
            assert reason is None or 0 < len(reason) < 60
            try:
                packed = check_image(data).transcoded_because
            except UnusableImage:
                outcomes["refused"] += 1
                assert reason is not None
                continue
            outcomes[packed or "kept"] += 1
            # Damage within the data is what only decoding shows.
            assert reason == (None if packed == "damaged data" else packed)
    assert outcomes["kept"] and outcomes["refused"] and len(outcomes) > 5


@pytest.mark.skipif(not ODD_IMAGES.exists(), reason="needs the collection of odd images")
def test_odd_images_are_fit_as_packing_says_but_for_damage_within_their_data() -> None:
    with tarfile.open(ODD_IMAGES) as tar:
        files = [(m.name, tar.extractfile(m)) for m in tar if m.isfile()]
        contents = {name: file.read() for name, file in files if file is not None}
    fit = 0
    for name, data in contents.items():
        try:
            reason = check_image(data).transcoded_because
        except UnusableImage as error:
            reason = str(error)
        if why_not_alike(data) is None:
            assert reason in (None, "damaged data"), name
            fit += 1
        else:
            assert reason is not None, name
    assert 0 < fit < len(contents)
