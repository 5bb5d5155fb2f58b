"""The judge of single images: every decoder reads alike what it keeps, and no bomb hurts it."""

import io
import random
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageOps

from accelssl.pipeline.adopting.adopted_image import why_not_alike
from accelssl.pipeline.images.image_check import CheckedImage, UnusableImage, check_image
from accelssl.pipeline.images.jpeg_header import jpeg_size
from accelssl.pipeline.images.plain_jpeg import why_not_plain

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
ORIENTATION = 0x0112
SOF, DHT, SOI, EOI, SOS, DQT, DRI = 0xC0, 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD
FRAMES = (b"\xff\xc0", b"\xff\xc1", b"\xff\xc2")
APP0, APP1, APP14 = 0xE0, 0xE1, 0xEE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def picture(seed: int, width: int = 61, height: int = 43) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray((smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype("u1"))


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def rgb(data: bytes) -> npt.NDArray[np.int16]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int16)


def with_orientation(image: Image.Image, orientation: int, form: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, form, exif=exif)


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def parts(jpeg: bytes) -> list[bytes]:
    """A JPEG cut into its start marker, its segments, the data of its scans, and its end marker."""
    cut, at = [jpeg[:2]], 2
    while jpeg[at + 1] != EOI:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        cut.append(jpeg[at:end])
        at = end
        if cut[-1][1] == SOS:
            found = re.compile(rb"\xff[^\x00\xd0-\xd7]").search(jpeg, at)
            assert found
            cut.append(jpeg[at : found.start()])
            at = found.start()
    return [*cut, jpeg[at:]]


def replaced(jpeg: bytes, marker: int, old: bytes, new: bytes) -> bytes:
    cut = parts(jpeg)
    n = next(i for i, part in enumerate(cut) if part[1] == marker and old in part)
    cut[n] = cut[n].replace(old, new, 1)
    return b"".join(cut)


def inserted(jpeg: bytes, before: int, *segments: bytes) -> bytes:
    cut = parts(jpeg)
    n = next(i for i, part in enumerate(cut) if part[1] == before)
    return b"".join([*cut[:n], *segments, *cut[n:]])


def without(jpeg: bytes, marker: int) -> bytes:
    return b"".join(part for part in parts(jpeg) if part[:2] != bytes([0xFF, marker]))


def first(jpeg: bytes, marker: int) -> bytes:
    return next(part for part in parts(jpeg) if part[:2] == bytes([0xFF, marker]))


def with_byte(jpeg: bytes, marker: int, at: int, value: int) -> bytes:
    old = first(jpeg, marker)
    return jpeg.replace(old, old[:at] + bytes([value]) + old[at + 1 :], 1)


def adobe(transform: int) -> bytes:
    return segment(APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


FLAVOURS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "own tables": {"optimize": True},
}
PLAIN = {
    f"{name} {4 - subsampling}": encoded(picture(subsampling), subsampling=subsampling, **options)
    for subsampling in (0, 1, 2)
    for name, options in FLAVOURS.items()
} | {
    "gray": encoded(picture(3).convert("L")),
    "gray progressive": encoded(picture(4).convert("L"), progressive=True),
    "large": encoded(picture(5, 300, 200), quality=90),
    "large progressive": encoded(picture(6, 300, 200), progressive=True),
    "one pixel": encoded(picture(7, 1, 1)),
    "comment and profile": encoded(picture(8), comment=b"x" * 3000, icc_profile=bytes(70_000)),
    "upright": with_orientation(picture(9), 1),
    "trailing": encoded(picture(10)) + b"trailing bytes",
    "another JPEG behind": encoded(picture(11)) + encoded(picture(12)),
}

# The same data under other headers. 64 x 64 pixels take as many units either way.
SQUARE_422, SQUARE_420 = (encoded(picture(13, 64, 64), subsampling=ss) for ss in (1, 2))
NUMBERED_FROM_0 = SQUARE_420
for at, number in enumerate((0, 1, 2)):
    NUMBERED_FROM_0 = with_byte(NUMBERED_FROM_0, SOF, 10 + 3 * at, number)
    NUMBERED_FROM_0 = with_byte(NUMBERED_FROM_0, SOS, 5 + 2 * at, number)
PLAIN |= {
    "4:4:0": with_byte(SQUARE_422, SOF, 11, 0x12),
    "4:1:1": with_byte(SQUARE_420, SOF, 11, 0x41),
    "extended": with_byte(SQUARE_420, SOF, 1, 0xC1),
    "numbered from 0": NUMBERED_FROM_0,
    "neither JFIF nor Adobe": without(SQUARE_420, APP0),
    "numbered from 0, neither": without(NUMBERED_FROM_0, APP0),
    "JFIF and Adobe": inserted(SQUARE_420, DQT, adobe(1)),
    "Adobe alone": without(inserted(SQUARE_420, DQT, adobe(1)), APP0),
    "gray, Adobe": inserted(PLAIN["gray"], DQT, adobe(0)),
}
BASELINE, PROGRESSIVE, RESTARTS = PLAIN["large"], PLAIN["large progressive"], PLAIN["restarts 2"]


class Dali:
    """Decodes as training does; None for what it refuses."""

    def __init__(self, adjust_orientation: bool = False) -> None:
        self._dali = pytest.importorskip("nvidia.dali")
        self._batch: list[npt.NDArray[np.uint8]] = []
        self._adjust_orientation = adjust_orientation

    def decode(self, jpegs: list[bytes]) -> Iterator[npt.NDArray[np.int16] | None]:
        pipeline = self._pipeline()
        for first in range(0, len(jpegs), 64):
            batch = jpegs[first : first + 64]
            try:
                yield from self._run(pipeline, batch)
            except RuntimeError:  # of one: the pipeline is gone, so look at each alone
                pipeline = self._pipeline()
                for jpeg in batch:
                    try:
                        yield from self._run(pipeline, [jpeg])
                    except RuntimeError:
                        pipeline = self._pipeline()
                        yield None

    def _pipeline(self) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            64, 2, None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False
        )
        with pipeline:
            data = fn.external_source(source=lambda: self._batch, batch=True)
            pipeline.set_outputs(
                fn.decoders.image(
                    data,
                    device="cpu",
                    output_type=types.RGB,
                    adjust_orientation=self._adjust_orientation,
                )
            )
        pipeline.build()
        return pipeline

    def _run(self, pipeline: Any, batch: list[bytes]) -> list[npt.NDArray[np.int16]]:
        self._batch = [np.frombuffer(jpeg, np.uint8) for jpeg in batch]
        (images,) = pipeline.run()
        return [np.array(images.at(i), np.int16) for i in range(len(batch))]


def damaged(jpeg: bytes, rng: random.Random) -> bytes:
    """The JPEG with one thing wrong with its headers, its markers or its structure."""
    cut = parts(jpeg)
    headers = [n for n in range(len(cut)) if n == 0 or cut[n - 1][1:2] != bytes([SOS])]
    n, other = rng.choice(headers), rng.randrange(1, len(cut))
    at = rng.randrange(len(cut[n]))
    before, byte, after = cut[n][:at], cut[n][at], cut[n][at + 1 :]
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            cut[n] = before + bytes([byte ^ 1 << rng.randrange(8)]) + after
        case 4:
            cut[n] = before + rng.randbytes(1) + after
        case 5:
            cut[n] = before + after[rng.randrange(4) :]
        case 6:
            cut[n] = before + rng.choice([b"\xff", b"\0", b"\xff\xd0", b"\xff\xd9", b"a"]) + after
        case 7:
            cut.insert(other, cut[n])
        case 8:
            del cut[n]
        case 9:
            cut[n], cut[other] = cut[other], cut[n]
        case 10:
            cut.insert(other, rng.choice(STRANGE_SEGMENTS))
            if rng.randrange(2):
                cut = [part for part in cut if part[:2] != b"\xff\xe0"]  # JFIF
        case 11:
            frame = next(i for i, part in enumerate(cut) if part[:2] in FRAMES)
            body = bytearray(cut[frame])
            for component in range(body[9]):
                body[11 + 3 * component] = rng.choice([0x11, 0x12, 0x21, 0x22, 0x31, 0x41, 0x14])
            cut[frame] = bytes(body)
    return b"".join(cut)


EXIF_TURNED = with_orientation(picture(0, 8, 8), 6)
STRANGE_SEGMENTS = [
    *(segment(APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform])) for transform in range(4)),
    segment(APP14, b"Adobe\0\x64\0\0\0"),
    segment(APP0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"),
    next(part for part in parts(EXIF_TURNED) if part[1] == APP1),
    segment(DRI, b"\0\x02"),
    segment(DRI, b"\0\0"),
    segment(0xDC, b"\0\x20"),  # DNL: the height comes after the scan
    b"\xff\xd8",
    b"\xff\xd3",
    b"\xff\x01",
]


def test_whatever_is_kept_dali_decodes_to_the_same_pixels() -> None:
    # Pillow and DALI on the CPU both use libjpeg-turbo, which is exact: no tolerance is needed.
    rng, kept, outcome = random.Random(0), [*PLAIN.values()], Counter[str]()
    sources = [jpeg for jpeg in PLAIN.values() if len(jpeg) < 4000]
    for _ in range(6000):
        jpeg = damaged(rng.choice(sources), rng)
        try:
            checked = check_image(jpeg)
        except UnusableImage:
            outcome["refused"] += 1
            continue
        outcome["kept" if checked.transcoded_because is None else "transcoded"] += 1
        kept += [jpeg] if checked.transcoded_because is None else []
        if checked.transcoded_because is None:
            assert checked.jpeg == jpeg
    assert min(outcome[what] for what in ("kept", "transcoded", "refused")) > 500, outcome
    for adjust_orientation in (False, True):
        for jpeg, pixels in zip(kept, Dali(adjust_orientation).decode(kept), strict=True):
            assert pixels is not None, jpeg.hex()
            assert np.array_equal(pixels, rgb(jpeg)), jpeg.hex()
            assert jpeg_size(jpeg) == pixels.shape[:2]


def test_the_judge_of_headers_alone_gives_the_same_reasons() -> None:
    rng, outcome = random.Random(1), Counter[str]()
    sources = [jpeg for jpeg in PLAIN.values() if len(jpeg) < 4000] + [EXIF_TURNED]
    for _ in range(3000):
        jpeg = damaged(rng.choice(sources), rng)
        found = why_not_alike(jpeg)
        try:
            checked = check_image(jpeg)
        except UnusableImage:
            assert found is not None, jpeg.hex()
            outcome["refused"] += 1
            continue
        # What only decoding shows is not in a header.
        reason = checked.transcoded_because
        assert found == (None if reason == "damaged data" else reason), jpeg.hex()
        outcome[str(found)] += 1
    assert len(outcome) > 15, outcome
    assert outcome["None"] > 500


@pytest.mark.parametrize("name", PLAIN)
def test_plain_jpegs_keep_their_bytes(name: str) -> None:
    assert check_image(PLAIN[name]) == CheckedImage(PLAIN[name], None)


SCANS = "unusual scans"
UNUSUAL = {
    "stuffing in the header": (BASELINE[:2] + b"\xff\x00" + BASELINE[2:], "stray bytes"),
    "fill bytes": (BASELINE[:2] + b"\xff\xff" + BASELINE[2:], "stray bytes"),
    "restart in the header": (BASELINE[:2] + b"\xff\xd0" + BASELINE[2:], "stray bytes"),
    "a second start": (BASELINE[:2] + BASELINE, "stray bytes"),
    "unknown segment": (inserted(BASELINE, DQT, segment(0xF0, b"x")), "segment f0"),
    "two EXIF blocks": (
        inserted(PLAIN["upright"], DQT, segment(APP1, b"Exif\0\0MM\0*\0\0\0\x08\0\0")),
        "two EXIF blocks",
    ),
    "number of lines after": (inserted(BASELINE, EOI, segment(0xDC, b"\0\xc8")), "stray|segment"),
    "two frames": (inserted(BASELINE, SOF, first(BASELINE, SOF)), "two frames"),
    "arithmetic": (with_byte(BASELINE, SOF, 1, 0xC9), "arithmetic"),
    "lossless": (with_byte(BASELINE, SOF, 1, 0xC3), "arithmetic or lossless"),
    "deep": (with_byte(BASELINE, SOF, 4, 12), "12 bits"),
    "no height": (with_byte(with_byte(BASELINE, SOF, 5, 0), SOF, 6, 0), "no size"),
    "frame too long": (replaced(BASELINE, SOF, b"\xff\xc0\0\x11", b"\xff\xc0\0\x14"), "stray|miss"),
    "four components": (encoded(picture(1).convert("CMYK")), "4 colour components"),
    "named RGB": (encoded(picture(1), keep_rgb=True), "RGB colour space"),
    "Adobe RGB": (inserted(BASELINE, DQT, adobe(0)), "RGB colour space"),
    "Adobe YCCK": (inserted(BASELINE, DQT, adobe(2)), "unusual Adobe"),
    "two Adobes": (inserted(BASELINE, DQT, adobe(1), adobe(0)), "RGB colour space"),
    "Adobe too short": (inserted(BASELINE, DQT, segment(APP14, b"Adobe\0\x64")), "unusual Adobe"),
    "big gamut": (with_byte(BASELINE, SOF, 13, 0x22), "component numbers"),
    "factors of 3": (with_byte(BASELINE, SOF, 11, 0x31), "sampling factors"),
    "luma below chroma": (with_byte(BASELINE, SOF, 14, 0x22), "sampling factors"),
    "fractions": (with_byte(with_byte(BASELINE, SOF, 11, 0x32), SOF, 14, 0x21), "sampling factors"),
    "factor zero": (with_byte(BASELINE, SOF, 11, 0x02), "sampling factors"),
    # Pillow writes these, and hardware decoders make rubbish of them.
    "gray with factors": (encoded(picture(3).convert("L"), subsampling=2), "sampling factors"),
    "no quantisers": (without(BASELINE, DQT), "tables missing"),
    "unknown quantiser": (with_byte(BASELINE, SOF, 12, 3), "tables missing"),
    "quantiser of zero": (with_byte(BASELINE, DQT, 9, 0), "quantisation"),
    "quantiser twice": (inserted(BASELINE, DQT, first(BASELINE, DQT)), "quantisation"),
    "quantiser cut": (
        inserted(BASELINE, SOF, segment(DQT, first(BASELINE, DQT)[4:60])),
        "quantisation",
    ),
    "wide quantisers": (encoded(picture(1), qtables=[[300] * 64] * 2), "quantisation"),
    "late quantisers": (inserted(BASELINE, EOI, segment(DQT, b"\3" + b"\1" * 64)), "quantisation"),
    "no codes": (without(BASELINE, DHT), "tables missing"),
    "codes twice": (inserted(BASELINE, DHT, first(BASELINE, DHT)), "Huffman"),
    "codes over-full": (with_byte(BASELINE, DHT, 5, 3), "Huffman"),
    "codes all taken": (
        replaced(BASELINE, DHT, first(BASELINE, DHT)[4:], b"\0\2" + bytes(15) + b"\0\1"),
        "stray|Huffman",
    ),
    "code of no symbol": (inserted(BASELINE, SOF, segment(DHT, b"\2" + bytes(16))), "Huffman"),
    "code number": (with_byte(BASELINE, DHT, 4, 4), "Huffman"),
    "difference of 12 bits": (with_byte(BASELINE, DHT, 21, 12), "Huffman"),
    "a scan of no component": (with_byte(BASELINE, SOS, 4, 0), SCANS),
    "a scan of too many": (with_byte(BASELINE, SOS, 4, 4), SCANS),
    "a scan of another": (with_byte(BASELINE, SOS, 5, 9), SCANS),
    "a scan of one twice": (with_byte(BASELINE, SOS, 7, 1), SCANS),
    "scan of other codes": (with_byte(BASELINE, SOS, 6, 0x20), "Huffman"),
    "progressive scan of other codes": (with_byte(PROGRESSIVE, SOS, 6, 0x30), "tables missing"),
    "half the coefficients": (with_byte(BASELINE, SOS, 12, 31), SCANS),
    "a baseline shift": (with_byte(BASELINE, SOS, 13, 1), SCANS),
    "a progressive shift": (with_byte(PROGRESSIVE, SOS, 13, 0), SCANS),
    "a scan twice": (b"".join([*parts(PROGRESSIVE)[:-1], *parts(PROGRESSIVE)[-3:]]), SCANS),
    "a scan left out": (b"".join([*parts(PROGRESSIVE)[:-4], b"\xff\xd9"]), SCANS),
    # The GPU's decoder differs from libjpeg here.
    "progressive restarts": (
        encoded(picture(1), progressive=True, restart_marker_blocks=3),
        "restart markers in progressive",
    ),
    "restarts swapped": (RESTARTS.replace(b"\xff\xd1", b"\xff\xd2", 1), "restart"),
    "restart left out": (RESTARTS.replace(b"\xff\xd1", b"", 1), "restart"),
    "restart twice": (RESTARTS.replace(b"\xff\xd1", b"\xff\xd1\xff\xd1", 1), "restart"),
    "restarts not announced": (without(RESTARTS, DRI), "restart|stray"),
    "restarts announced only": (inserted(BASELINE, SOS, segment(DRI, b"\0\4")), "restart"),
    "restart interval cut": (inserted(BASELINE, SOS, segment(DRI, b"\4")), "restart"),
    "no end": (BASELINE[:-2], "end marker"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_decoders_may_disagree_about_is_not_kept(name: str) -> None:
    data, reason = UNUSUAL[name]
    found = why_not_plain(data)
    assert found is not None
    assert re.search(reason, found), found
    try:
        checked = check_image(data)
    except UnusableImage:
        return
    assert checked.transcoded_because is not None
    assert why_not_plain(checked.jpeg) is None
    # The pixels are those that Pillow sees.
    assert np.abs(rgb(checked.jpeg) - rgb(data)).max() <= 4


def taller(jpeg: bytes, marker: int, rows: int) -> bytes:
    frame = first(jpeg, marker)
    height = int.from_bytes(frame[5:7], "big") + rows
    return jpeg.replace(frame, frame[:5] + height.to_bytes(2, "big") + frame[7:], 1)


def scan_cut(jpeg: bytes, keep: float) -> bytes:
    """The JPEG with only a part of the last scan's data, but its end marker."""
    *head, data, end = parts(jpeg)
    return b"".join([*head, data[: int(len(data) * keep)].rstrip(b"\xff"), end])


def garbled(jpeg: bytes, seed: int) -> bytes:
    """The JPEG with the symbols of one table in another order: the wrong codes for its data."""
    tables = [part for part in parts(jpeg) if part[1] == DHT]
    table = max(tables, key=len)
    symbols = list(table[21:])
    random.Random(seed).shuffle(symbols)
    return jpeg.replace(table, table[:21] + bytes(symbols), 1)


DAMAGED = {
    "one row of blocks more": taller(BASELINE, SOF, 16),
    "a hundred rows more": taller(BASELINE, SOF, 100),
    "rows less": taller(BASELINE, SOF, -32),
    "progressive, rows more": taller(PROGRESSIVE, 0xC2, 16),
    "progressive, rows less": taller(PROGRESSIVE, 0xC2, -32),
    "data cut": scan_cut(BASELINE, 0.9),
    "data nearly whole": scan_cut(BASELINE, 0.995),
    "progressive, data cut": scan_cut(PROGRESSIVE, 0.9),
    "restarts, last interval cut": scan_cut(RESTARTS, 0.98),
    "data and more": b"".join([*parts(BASELINE)[:-1], bytes(40), b"\xff\xd9"]),
    "restarts, first interval cut": RESTARTS[: RESTARTS.index(b"\xff\xd0") - 80]
    + RESTARTS[RESTARTS.index(b"\xff\xd0") :],
    "other codes": garbled(BASELINE, 0),
    "progressive, other codes": garbled(PROGRESSIVE, 0),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_data_that_does_not_code_its_picture_is_not_kept(name: str) -> None:
    # Pillow decodes all of these without a word.
    data = DAMAGED[name]
    assert why_not_plain(data) is None
    assert rgb(data).size
    assert check_image(data).transcoded_because == "damaged data"


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


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(height * (width // 8 + 2)), 9))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), *chunks, rows, chunk(b"IEND", b"")]
    )


def tiff(tags: list[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    """A TIFF of (tag, type, count, value); a value of -n is a place n bytes before the end."""
    size = 14 + 12 * len(tags) + len(data)
    entries = b"".join(
        struct.pack("<HHII", tag, kind, count, value if value >= 0 else size + value)
        for tag, kind, count, value in tags
    )
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + data


def strips(width: int, height: int, *more: tuple[int, int, int, int]) -> list[Any]:
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]
    return sorted([*tags, *more])


def claiming(image: bytes, at: int, form: str, *size: int) -> bytes:
    return image[:at] + struct.pack(form, *size) + image[at + struct.calcsize(form) :]


def more_scans(jpeg: bytes, times: int) -> bytes:
    *head, header, data, end = parts(jpeg)
    return b"".join([*head, *[header, data] * times, end])


def bombs() -> dict[str, bytes]:
    dot = picture(0, 16, 16)
    jpeg, gif, webp = encoded(dot), encoded(dot, "GIF"), encoded(dot, "WEBP", lossless=True)
    nothing = zlib.compress(bytes(50_000_000), 9)
    overlapping = tiff([(30_000 + i, 7, 900_000, -900_000) for i in range(900)], bytes(900_000))
    blocks = [overlapping[i : i + 65_000] for i in range(0, len(overlapping), 65_000)]
    flat = zlib.compress(bytes(100_000_000), 9)
    wide = encoded(Image.new("L", (2000, 2000)), progressive=True)
    tile = [
        (322, 4, 1, 30_000),
        (323, 4, 1, 30_000),
        (324, 4, 1, -len(flat)),
        (325, 4, 1, len(flat)),
    ]
    canvas = (16_382).to_bytes(3, "little") * 2
    return {
        "png": png(30_000, 30_000),
        "png text": png(16, 16, chunk(b"zTXt", b"a\0\0" + nothing)),
        "png texts": png(
            16, 16, *[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000)))] * 60
        ),
        "png profile": png(16, 16, chunk(b"iCCP", b"a\0\0" + nothing)),
        "png exif": png(16, 16, chunk(b"eXIf", overlapping)),
        "jpeg": claiming(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH", 65_500, 65_500),
        "jpeg within bounds": claiming(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH", 9_000, 9_000),
        "jpeg exif": jpeg[:2]
        + b"".join(segment(APP1, b"Exif\0\0" + block) for block in blocks)
        + jpeg[2:],
        "jpeg scans": more_scans(wide, 5000),
        "gif": claiming(gif, 6, "<HH", 65_000, 65_000),
        "gif frame": claiming(gif, gif.index(b"\x2c\0\0\0\0") + 5, "<HH", 65_000, 65_000),
        "gif frames": encoded(
            Image.new("P", (500, 500)),
            "GIF",
            save_all=True,
            append_images=[Image.new("P", (500, 500), n) for n in range(1, 250)],
        ),
        "webp": claiming(webp, webp.index(b"VP8L") + 9, "<I", 16_382 | 16_382 << 14),
        "webp canvas": webp[:12] + b"VP8X" + struct.pack("<II", 10, 0) + canvas + webp[12:],
        "bmp": claiming(encoded(dot, "BMP"), 18, "<ii", 60_000, 60_000),
        "ppm": b"P6 60000 60000 255\n" + bytes(99),
        "tiff": tiff(strips(60_000, 60_000, (273, 4, 1, 8), (279, 4, 1, 99)), bytes(99)),
        "tiff tile": tiff(strips(16, 16, (259, 3, 1, 8), *tile), flat),
        "tiff tags": overlapping,
        "tiff counts": tiff(strips(16, 16, (273, 4, 2**32 - 1, 8), (279, 4, 2**31, 8)), bytes(99)),
    }


CHECK_IN_TURN = """
import io, pathlib, sys, time, warnings
from PIL import Image, ImageDraw, ImageOps
from accelssl.pipeline.images.image_check import UnusableImage, check_image

def peak_kb():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])

warnings.simplefilter("ignore")
for form in ("PNG", "JPEG", "TIFF", "WEBP", "GIF"):
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, form)
    check_image(buffer.getvalue())
for path in map(pathlib.Path, sys.argv[1:]):
    data, before_kb, start_s = path.read_bytes(), peak_kb(), time.monotonic()
    try:
        outcome = check_image(data).transcoded_because or "kept"
    except UnusableImage as error:
        outcome = f"refused: {error}"
    print(path.name, peak_kb() - before_kb, time.monotonic() - start_s, outcome, sep="\t")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_no_bomb_costs_memory_or_time(tmp_path: Path) -> None:
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
    names = sorted(bombs())
    job = subprocess.run(
        [sys.executable, "-c", CHECK_IN_TURN, *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in job.stdout.splitlines()]
    assert [row[0] for row in rows] == names
    for name, grown_kb, elapsed_s, outcome in rows:
        assert int(grown_kb) < 60_000, (name, grown_kb)
        assert float(elapsed_s) < 5, (name, elapsed_s)
        # Those whose picture is small and sound are worth keeping all the same.
        is_sound = name in ("png texts", "png exif", "jpeg exif", "gif frames")
        assert outcome.startswith("refused: ") != is_sound, (name, outcome)


def refused() -> dict[str, bytes]:
    return {
        "empty": b"",
        "page": b"<!DOCTYPE html><title>404</title>",
        "cut": BASELINE[: len(BASELINE) // 2],
        "cut progressive": PROGRESSIVE[:-200],
        "cut png": encoded(picture(1), "PNG")[:-100],
        "header only": BASELINE[:300],
        "floats": encoded(Image.new("F", (8, 8)), "TIFF"),
    } | {name: data for name, data in bombs().items() if name.startswith(("jpeg ", "tiff", "png"))}


def test_reasons_are_short_and_the_same_on_every_run() -> None:
    for name, data in refused().items():
        reasons = []
        for _ in range(2):
            try:
                reasons.append(check_image(data).transcoded_because)
            except UnusableImage as error:
                reasons.append(str(error))
        assert reasons[0] == reasons[1], name
        assert reasons[0] is not None
        assert 0 < len(reasons[0]) < 120, reasons
        assert not re.search(r"0x|[/\\\n\t]", reasons[0]), reasons


def archive(name: str) -> dict[str, bytes]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs {name}")
    with tarfile.open(path) as tar:
        return {m.name: file.read() for m in tar if (file := tar.extractfile(m))}


# None: kept; "-": refused.
ODD_IMAGES = {
    "cmyk_ycck.jpg": "CMYK",
    "cmyk_plain.jpg": "CMYK",
    "gray.jpg": None,
    "progressive.jpg": None,
    "arithmetic.jpg": "arithmetic or lossless coding",
    "restart_markers.jpg": None,
    "ss411.jpg": None,
    "jpeg_12bit.jpg": "-",
    "lossless.jpg": "-",
    "mjpeg_no_dht.jpg": "tables missing",
    "truncated.jpg": "-",
    "truncated.png": "-",
    "zero_bytes.jpg": "-",
    "html_named.jpg": "-",
    "gif_named.jpg": "GIF",
    "webp_named.jpg": "WEBP",
    "bmp_named.jpg": "BMP",
    "avif.avif": "AVIF",
    "png_rgba.png": "PNG",
    "png_palette.png": "PNG",
    "n02105855_2933.JPEG": "PNG",
    "exif_orient_2.jpg": "EXIF orientation",
    "exif_orient_4.jpg": "EXIF orientation",
    "exif_orient_7.jpg": "EXIF orientation",
    "exif_rotate_90_640.jpg": "EXIF orientation",
    "ff00_header.jpg": "stray bytes in the header",
    "one_by_one.jpg": None,
    "invalid_dimensions.jpg": "-",
}


def test_every_odd_image_has_its_outcome() -> None:
    outcome: dict[str, str | None] = {}
    stored = {}
    for name, data in archive("odd_images.tar").items():
        if name.endswith((".txt", ".tsv", ".md")):
            continue
        try:
            checked = check_image(data)
        except UnusableImage:
            outcome[name] = "-"
            continue
        outcome[name] = checked.transcoded_because
        stored[name] = checked.jpeg
        assert (checked.jpeg == data) == (checked.transcoded_because is None)
        assert why_not_plain(checked.jpeg) is None
    assert outcome == ODD_IMAGES
    for name, pixels in zip(stored, Dali(True).decode(list(stored.values())), strict=True):
        assert pixels is not None and np.array_equal(pixels, rgb(stored[name])), name


@pytest.mark.parametrize(("name", "files"), [("fullsize_200.tar", 200), ("in20_96_800.tar", 800)])
def test_real_jpegs_keep_their_bytes(name: str, files: int) -> None:
    jpegs = [d for n, d in archive(name).items() if n.lower().endswith((".jpg", ".jpeg"))]
    assert len(jpegs) == files
    reasons = Counter(check_image(jpeg).transcoded_because for jpeg in jpegs)
    assert reasons == {None: files}
