"""Numbers as a reader of the report wants them: 200k, 1.28M, 2 h 05 min, 61.3%."""

import math
from collections.abc import Sequence

ABSENT = "\N{EN DASH}"
SUFFIXES = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))


def quantity(value: float | None) -> str:
    """Format three significant digits with suffix k, M, G or T; an en dash for nothing or NaN.

    >>> quantity(200_000), quantity(1_281_167), quantity(999.6), quantity(0.0123)
    ('200k', '1.28M', '1k', '0.0123')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    # Rounding first decides the suffix: 999 600 is 1M, not 1000k.
    rounded = float(f"{value:.3g}")
    scale, suffix = max(
        (pair for pair in SUFFIXES if pair[0] <= max(abs(rounded), 1.0)), key=lambda pair: pair[0]
    )
    scaled = rounded / scale
    decimals = max(0, 2 - math.floor(math.log10(abs(scaled))))
    text = f"{scaled:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def duration(value_s: float | None) -> str:
    """Format seconds in the two largest units.

    >>> duration(4.21), duration(65), duration(7500), duration(90_000)
    ('4.2 s', '1 min 05 s', '2 h 05 min', '1 d 1 h')
    """
    if value_s is None or not math.isfinite(value_s):
        return ABSENT
    if value_s < 9.95:
        return f"{value_s:.1f} s"
    whole_s = round(value_s)
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60:02d} s"
    minutes = round(value_s / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(value_s / 3600)
    return f"{hours // 24} d {hours % 24} h"


def percent(value: float | None, decimals: int = 1) -> str:
    """Format a figure that is already in per cent: 61.3%."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.{decimals}f}%"


def times(value: float | None) -> str:
    """Format a ratio as a factor, to two decimals: 2.81x with the multiplication sign."""
    if value is None or not math.isfinite(value):
        return ABSENT
    # What is computed in two ways may differ in its last digits, and 5.625 is rounded by them.
    return f"{round(value, 6):.2f}\N{MULTIPLICATION SIGN}"


def compression(p: float, drop: float) -> str:
    """Return the name of a compression in plots and tables: p30 d0.5."""
    return f"p{p:g} d{drop:g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a terminal table's lines: the first column aligned left, the others right.

    >>> aligned([["", "a"], ["row", "12"]])
    ['      a', 'row  12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
