"""Savings of `shard-imagenet --short-side`, and its effect on the crops for training.

    python -m accelssl.benchmarks.studies.short_side PICTURES WORK --short-side 256

PICTURES is a source of `shard-imagenet`, and its train split is looked at. It is packed twice into
WORK, as it is and with the limit. Both sets are decoded in turn, --rounds times. Then the loader's
crops of both are compared, for the windows that it draws (which scale with the picture, and are
rounded to whole pixels) and for exactly the same part of each picture; and so are other filters and
encodings than those of the command. Prints a page in Markdown.

Legend: N crops or pictures, 2 (height, width), 4 (top, left, bottom, right).
"""

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image

from accelssl.benchmarks.studies.short_side_page import Cost, Crops, Rates, WayResult, page
from accelssl.benchmarks.studies.short_side_ways import WAYS, Way
from accelssl.pipeline.decode.dali import CropStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.draws.draws import Drawn
from accelssl.pipeline.draws.order import sequential_plans
from accelssl.pipeline.draws.windows import Windows, random_windows
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.pipeline.views import View
from accelssl.shards.images.jpeg_header import jpeg_size
from accelssl.shards.shard_set import Split, open_shards
from accelssl.shards.write.shard_imagenet import shard_images

VIEW = View("crop", 240)
BATCH = 32
Floats = NDArray[np.float64]


class PackedPictures:
    """A packed set's pictures: their files in the set's order, and sizes_N2.

    `files`, if given, stand in for the set's own: the same pictures in the same sizes.
    """

    def __init__(self, split: Split, files: Sequence[bytes] | None = None) -> None:
        self.split = split
        self._replaced = files is not None
        own = [split.read(i)[0] for i in range(len(split))]
        self.files = own if files is None else list(files)
        self.sizes_N2 = np.array([jpeg_size(data) for data in own])

    def __len__(self) -> int:
        return len(self.files)

    @property
    def mean_bytes(self) -> float:
        """Return the mean size of a file in bytes."""
        return sum(map(len, self.files)) / len(self)

    @property
    def mean_pixels(self) -> float:
        """Return the mean number of pixels of a picture."""
        return float(self.sizes_N2.prod(axis=1).mean())

    def windows(self, epoch: int) -> Windows:
        """Return windows_N4 as the loader draws them."""
        return random_windows(VIEW, 0, 0, epoch, np.arange(len(self)), self.sizes_N2)

    def crops(self, windows: Sequence[Windows], side: int) -> Iterator[NDArray[np.uint8]]:
        """A crops_HWC for each picture, of the last of the windows_N4; all of them are cut.

        Decoded and cut as the loader does it, by one thread. A crop is valid until the next.
        """
        plans = sequential_plans(len(self), BATCH)
        batches: Iterator[Encoded] = EncodedBatches(
            self.split, plans, lambda plan, _: Drawn(tuple(w[plan.samples_N] for w in windows)), 1
        )
        batches = map(self._with_files, batches) if self._replaced else batches
        sides = [side] * len(windows)
        decoding = Decoding(threads=1)
        stream = CropStream(self.split, batches, sides, BATCH, torch.device("cpu"), decoding)
        for _, crops in stream:
            yield from crops[-1].numpy()

    def _with_files(self, batch: Encoded) -> Encoded:
        files = [np.frombuffer(self.files[i], np.uint8) for i in batch.plan.samples_N]
        return replace(batch, jpegs=files)


def pack(source: Path, out: Path, short_side: int | None) -> tuple[PackedPictures, float]:
    """A source's train split, packed with or without the limit; seconds of CPU for a picture."""
    started_s = time.process_time()
    images = shard_images(source, out, short_side=short_side, workers=1).images
    seconds = (time.process_time() - started_s) / images
    return PackedPictures(open_shards(out).split("train")), seconds


def rates(sets: Sequence[PackedPictures], rounds: int) -> Rates:
    """Pictures for each second of CPU time, by way, round and set.

    Of CPU time, of all threads: the machine may be at other work besides.
    """
    ways: dict[str, Callable[[PackedPictures], None]] = {
        "Pillow: decode": _decode_with_pillow,
        "DALI: decode (and cut 8 px)": _decode_with_dali,
        f"DALI: decode, cut two crops of {VIEW.size} px": _decode_and_crop,
    }
    found: Rates = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append((_rate_per_s(run, sets[0]), _rate_per_s(run, sets[1])))
    return found


def _rate_per_s(run: Callable[[PackedPictures], None], pictures: PackedPictures) -> float:
    started_s = time.process_time()
    run(pictures)
    return len(pictures) / (time.process_time() - started_s)


def _decode_with_pillow(pictures: PackedPictures) -> None:
    for data in pictures.files:
        Image.open(io.BytesIO(data)).convert("RGB")


def _decode_with_dali(pictures: PackedPictures) -> None:
    corner_N4 = np.tile(np.array([0, 0, 8, 8], np.float32), (len(pictures), 1))
    for _ in pictures.crops([corner_N4], 8):
        pass


def _decode_and_crop(pictures: PackedPictures) -> None:
    for _ in pictures.crops([pictures.windows(epoch) for epoch in (0, 1)], VIEW.size):
        pass


def differences_2N(
    one: PackedPictures, other: PackedPictures, windows: tuple[Windows, Windows]
) -> Floats:
    """Compare the crops of two sets: mean absolute difference in levels, PSNR in dB.

    `windows` are those of the one and of the other. Equal crops have an infinite PSNR.
    """
    rows = []
    crops = (p.crops([w], VIEW.size) for p, w in zip((one, other), windows, strict=True))
    for left, right in zip(*crops, strict=True):
        error = left.astype(np.float32) - right
        squared = float(np.square(error).mean())
        psnr = 10 * math.log10(255**2 / squared) if squared else math.inf
        rows.append((float(np.abs(error).mean()), psnr))
    return np.array(rows).T


def enlargement(windows: Windows) -> Floats:
    """Return each crop's enlargement of its window, as the root of the areas' ratio."""
    height, width = (windows[:, 2:] - windows[:, :2]).astype(float).T
    return np.asarray(VIEW.size / np.sqrt(height * width))


def scaled(windows: Windows, full: PackedPictures, shrunk: PackedPictures) -> Windows:
    """Where windows of the full-size pictures lie in the shrunk ones, between pixels too."""
    return np.asarray(windows * np.tile(shrunk.sizes_N2 / full.sizes_N2, (1, 2)), np.float32)


def compare(full: PackedPictures, shrunk: PackedPictures, epochs: int) -> Crops:
    """The crops of some epochs at full size, beside the same crops of the shrunk pictures."""
    parts = []
    for epoch in range(epochs):
        drawn = full.windows(epoch), shrunk.windows(epoch)
        same = drawn[0], scaled(drawn[0], full, shrunk)
        area_N = (drawn[0][:, 2:] - drawn[0][:, :2]).prod(axis=1) / full.sizes_N2.prod(axis=1)
        factors_2N = np.stack([enlargement(windows) for windows in drawn])
        off = [differences_2N(full, shrunk, windows) for windows in (drawn, same)]
        parts.append((area_N, factors_2N, *off, is_smaller(full, shrunk)))
    columns = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
    return Crops(*columns)


def is_smaller(full: PackedPictures, shrunk: PackedPictures) -> NDArray[np.bool_]:
    """Return a mask of the N pictures: True for each picture that was made smaller."""
    return np.asarray((full.sizes_N2 != shrunk.sizes_N2).any(axis=1))


def compare_ways(full: PackedPictures, shrunk: PackedPictures, rounds: int) -> list[WayResult]:
    """Each of WAYS: cost and crops of the pictures made smaller, bytes and decoding of all."""
    drawn = full.windows(epoch=0)
    same = drawn, scaled(drawn, full, shrunk)
    smaller = np.flatnonzero(is_smaller(full, shrunk))
    made, seconds = zip(*(_made(way, full, shrunk, smaller) for way in WAYS), strict=True)
    rates_per_s = [[_rate_per_s(_decode_with_pillow, p) for p in made] for _ in range(rounds)]
    decoded_per_s = np.median(rates_per_s, axis=0).tolist()
    results = []
    for way, pictures, way_s, rate_per_s in zip(WAYS, made, seconds, decoded_per_s, strict=True):
        off_N, psnr_N = differences_2N(full, pictures, same)[:, smaller]
        size_bytes = pictures.mean_bytes if way.quality else None
        results.append(WayResult(way.name, size_bytes, way_s, rate_per_s, off_N, psnr_N))
    return results


def _made(
    way: Way, full: PackedPictures, shrunk: PackedPictures, smaller: NDArray[np.intp]
) -> tuple[PackedPictures, float]:
    """The set that a way makes of the full-size pictures; seconds of CPU time for each it shrinks.

    Files that are not made smaller stay.
    """
    files = list(full.files)
    started_s = time.process_time()
    for i in smaller:
        height, width = shrunk.sizes_N2[i].tolist()
        files[i] = way.applied(full.files[i], (width, height))
    seconds = (time.process_time() - started_s) / len(smaller)
    return PackedPictures(shrunk.split, files), seconds


def main(
    pictures: Annotated[Path, typer.Argument(help="A source of shard-imagenet.")],
    work: Annotated[Path, typer.Argument(help="Empty folder for the two sets.")],
    short_side: int = 256,
    rounds: int = 5,
    epochs: int = 5,
) -> None:
    """Measure, and print a page."""
    full, full_s = pack(pictures, work / "full", None)
    shrunk, shrunk_s = pack(pictures, work / "shrunk", short_side)
    costs = [Cost(p.mean_bytes, p.mean_pixels, s) for p, s in ((full, full_s), (shrunk, shrunk_s))]
    text = page(
        short_side,
        costs,
        is_smaller(full, shrunk),
        rates([full, shrunk], rounds),
        compare(full, shrunk, epochs),
        compare_ways(full, shrunk, rounds),
    )
    print(text)


if __name__ == "__main__":
    typer.run(main)
