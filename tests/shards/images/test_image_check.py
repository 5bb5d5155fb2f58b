"""The judge of single images: every decoder reads alike what it keeps."""

import random
import re
from collections import Counter

import numpy as np
import pytest

from accelssl.shards.adopt.tar_judge import why_not_alike
from accelssl.shards.images.image_check import CheckedImage, UnusableImage, check_image
from accelssl.shards.images.jpeg_header import jpeg_size
from accelssl.shards.images.plain_jpeg import why_not_plain
from tests.shards.images.jpeg_parts import (
    APP0,
    APP1,
    APP14,
    BASELINE,
    DHT,
    DQT,
    DRI,
    EOI,
    EXIF_TURNED,
    PLAIN,
    PROGRESSIVE,
    RESTARTS,
    SOF,
    SOS,
    Dali,
    adobe,
    encoded,
    first,
    inserted,
    parts,
    picture,
    rgb,
    segment,
    with_byte,
    without,
)

FRAMES = (b"\xff\xc0", b"\xff\xc1", b"\xff\xc2")


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def replaced(jpeg: bytes, marker: int, old: bytes, new: bytes) -> bytes:
    cut = parts(jpeg)
    n = next(i for i, part in enumerate(cut) if part[1] == marker and old in part)
    cut[n] = cut[n].replace(old, new, 1)
    return b"".join(cut)


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
