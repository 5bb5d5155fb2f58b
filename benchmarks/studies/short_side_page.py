"""The page of benchmarks/studies/short_side.py, in Markdown.

Legend: N crops or pictures; of 2, the first is of full size and the second shrunk.
"""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.draws.draw_version import decoder_versions

BANDS = (0.08, 0.2, 0.4, 0.6, 1.0)
Floats = NDArray[np.float64]
Rates = dict[str, list[tuple[float, float]]]
"""By way: for each round, pictures a second of full size and shrunk."""


class Cost(NamedTuple):
    """Average cost of a picture of a set; packing in seconds of CPU time."""

    size_bytes: float
    pixels: float
    packing_s: float


@dataclass(frozen=True)
class Crops:
    """N crops at full size and of the shrunk pictures. Differences: levels off, PSNR in dB."""

    area_N: Floats
    """The window's share of its picture."""
    factors_2N: Floats
    """Enlargement from the window to the crop."""
    drawn_2N: Floats
    """Differences between windows as the loader draws them in each."""
    same_2N: Floats
    """Differences between exactly the same parts of the pictures."""
    is_smaller_N: NDArray[np.bool_]
    """True for each picture that was made smaller."""


@dataclass(frozen=True)
class WayResult:
    """A way to shrink and encode, and how far the N crops of its pictures are off."""

    name: str
    size_bytes: float | None
    """Average size of a picture; None for lossless storage, which JPEG does not offer."""
    seconds: float
    """CPU time to decode, shrink and encode a picture."""
    decoded_per_s: float
    """Pictures that Pillow decodes in a second of CPU time."""
    off_N: Floats
    """In levels."""
    psnr_N: Floats
    """In dB."""


def page(
    short_side: int,
    costs: Sequence[Cost],
    is_smaller_N: NDArray[np.bool_],
    rates: Rates,
    crops: Crops,
    ways: Sequence[WayResult],
) -> str:
    """Measurements; `costs` holds the costs of full-size and of shrunk pictures."""
    lines = [
        f"{len(is_smaller_N):,} pictures, {is_smaller_N.mean():.0%} of them with a shorter side "
        f"over {short_side}.",
        "",
        f"- {_processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"Pillow {version('pillow')}, DALI {decoder_versions()['DALI']}, "
        f"accelssl {version('accelssl')}",
        "",
        "| | full size | shrunk | ratio |",
        "|---|---|---|---|",
    ]
    units = (("kB", 1e-3), ("thousand pixels", 1e-3), ("ms of CPU time to pack", 1e3))
    for (unit, factor), full, shrunk in zip(units, *costs, strict=True):
        lines.append(
            f"| {unit} a picture | {full * factor:.1f} | {shrunk * factor:.1f} "
            f"| {shrunk / full:.2f} |"
        )
    tables = (_rates(rates), _enlargements(crops), _differences(crops), _ways(ways))
    return "\n".join([*lines, *(line for table in tables for line in ("", *table))])


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _rates(rates: Rates) -> list[str]:
    lines = [
        "| pictures for each second of CPU time | full size | shrunk | ratio (least to most) |",
        "|---|---|---|---|",
    ]
    for way, rounds in rates.items():
        full, shrunk = (statistics.median(values) for values in zip(*rounds, strict=True))
        ratios = [after / before for before, after in rounds]
        lines.append(
            f"| {way} | {full:,.0f} | {shrunk:,.0f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    return lines


def _bands(area_N: Floats) -> list[tuple[str, NDArray[np.bool_]]]:
    """Rows of a table: each band of area, and all. Rounding may lead out of the bands' ends."""
    inner = np.digitize(area_N, BANDS[1:-1])
    named = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(BANDS)]
    rows = [(name, np.asarray(inner == number)) for number, name in enumerate(named)]
    return [(name, row) for name, row in rows if row.any()] + [("all", inner >= 0)]


def _enlargements(crops: Crops) -> list[str]:
    lines = [
        "| window's share of the picture | crops | enlarged, full size | enlarged, shrunk "
        "| mean factor of all, full size | of all, shrunk |",
        "|---|---|---|---|---|---|",
    ]
    for name, is_in in _bands(crops.area_N):
        factors_2N = crops.factors_2N[:, is_in]
        cells = [name, f"{is_in.sum():,}", *(f"{(row > 1).mean():.0%}" for row in factors_2N)]
        cells += [f"{np.exp(np.log(row).mean()):.2f}" for row in factors_2N]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _differences(crops: Crops) -> list[str]:
    lines = [
        "| window's share of the picture | crops | windows as drawn: levels off | PSNR, dB "
        "| exactly the same part: levels off | PSNR, dB |",
        "|---|---|---|---|---|---|",
    ]
    chosen = crops.is_smaller_N
    for name, is_in in _bands(crops.area_N[chosen]):
        cells = [name, f"{is_in.sum():,}"]
        for off_N, psnr_N in (crops.drawn_2N[:, chosen], crops.same_2N[:, chosen]):
            cells += [f"{off_N[is_in].mean():.2f}", f"{psnr_N[is_in].mean():.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ways(ways: Sequence[WayResult]) -> list[str]:
    lines = [
        "| way | kB a picture | Pillow: decoded for each second of CPU time "
        "| ms of CPU time to decode, shrink and encode one | crops: levels off | PSNR, dB |",
        "|---|---|---|---|---|---|",
    ]
    for way in ways:
        size, rate = "-", "-"
        if way.size_bytes is not None:
            size, rate = f"{way.size_bytes / 1e3:.1f}", f"{way.decoded_per_s:,.0f}"
        lines.append(
            f"| {way.name} | {size} | {rate} | {way.seconds * 1e3:.1f} | {way.off_N.mean():.2f} "
            f"| {way.psnr_N.mean():.1f} |"
        )
    return lines
