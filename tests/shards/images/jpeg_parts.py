"""Small JPEGs taken apart and put together otherwise, and DALI to decode them."""

import io
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

ORIENTATION = 0x0112
SOF, DHT, SOI, EOI, SOS, DQT, DRI = 0xC0, 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD


APP0, APP1, APP14 = 0xE0, 0xE1, 0xEE


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


EXIF_TURNED = with_orientation(picture(0, 8, 8), 6)
