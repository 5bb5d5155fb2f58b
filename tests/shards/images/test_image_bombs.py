"""The judge of images against bombs, broken files and archives of real pictures."""

import re
import struct
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.shards.images.image_check import UnusableImage, check_image
from accelssl.shards.images.plain_jpeg import why_not_plain
from tests.shards.images.jpeg_parts import (
    APP1,
    BASELINE,
    PROGRESSIVE,
    Dali,
    encoded,
    parts,
    picture,
    rgb,
    segment,
)

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


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
from accelssl.shards.images.image_check import UnusableImage, check_image

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
