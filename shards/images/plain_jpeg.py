"""Check, without decoding, that every decoder reads a JPEG alike.

Walks the whole file as ISO/IEC 10918-1 annex B lays it out: segments, scans, restart markers. The
coefficients themselves are not looked at: that is the full decode's job.
"""

import re

from accelssl.shards.images.jpeg_frame import Frame, cells, plain_frame
from accelssl.shards.images.jpeg_header import EOI, FRAMES, SOI, STRAY, Marker, NotPlain, segments

_ADOBE_AT, _ADOBE_YCBCR = 11, 1

_TABLES, _SCANS, _ADOBE = "tables missing", "unusual scans", "unusual Adobe marker"
_HUFFMAN, _QUANTISERS = "unusual Huffman tables", "unusual quantisation tables"
_RESTARTS = "unusual restart markers"

# What a symbol may say in 8 bits (annexes F and G): the length of a DC difference; the zeros before
# an AC coefficient and its length; in progressive scans also how many blocks end.
_DC_SYMBOLS = frozenset(range(12))
_AC_SYMBOLS = frozenset({0x00, 0xF0} | {16 * run + n for run in range(16) for n in range(1, 11)})
_PROGRESSIVE_AC_SYMBOLS = _AC_SYMBOLS | {16 * run for run in range(15)}
_UNSENT, _HIGHEST_SHIFT = 99, 13

_marker_in_data = re.compile(rb"\xff[^\x00]", re.DOTALL)


def why_not_plain(data: bytes) -> str | None:
    """Name the unusual part of a JPEG, or return None: see `plain_data_ends`."""
    try:
        plain_data_ends(data)
    except NotPlain as reason:
        return str(reason)
    return None


def plain_data_ends(data: bytes) -> tuple[int, ...]:
    """Return the end of each run of coded data in a plain JPEG: the position of the next marker.

    Plain is a whole file of one frame: Huffman-coded baseline in one scan, or progressive whose
    scans send each bit of each coefficient once; 8 bits; gray, or YCbCr with chroma sampled 1 x 1
    and nothing that hints at other colours; every table valid, sent once (progressive: as often as
    need be) and before the scan that uses it; restart markers in baseline only, exactly where they
    belong, and no stray byte up to the end marker. No decoder reads beyond that marker.

    Raises NotPlain: decoders refuse such a file, or make pixels of it that differ between them.
    """
    plain = _Plain(data)
    plain.read()
    return tuple(plain.data_ends)


class _Plain:
    """Reader of a JPEG from front to end, which raises NotPlain for unusual parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._frame: Frame | None = None
        self._adobe_transforms: set[int] = set()
        self._has_exif = False
        self._quantisers: set[int] = set()
        self._huffman: dict[int, frozenset[int]] = {}  # by 16 * class + number
        self._restart_interval = 0
        self._scans = 0
        self.data_ends: list[int] = []
        # For each coefficient of each component the lowest bit sent so far, _UNSENT before any.
        self._lowest_bits: list[list[int]] = []

    def read(self) -> None:
        at = len(SOI)
        while not self._scans or self._data[at : at + 2] != EOI:
            at = self._read_scan(at)
        if any(any(lowest) for lowest in self._lowest_bits):
            raise NotPlain(_SCANS)

    def _read_scan(self, at: int) -> int:
        """Read the segments and the data of the next scan, and return the end of the data."""
        for marker, body, end in segments(self._data, at):
            if end != at + 4 + len(body):
                raise NotPlain(STRAY)  # fill bytes
            at = end
            if marker in FRAMES:
                self._take_frame(marker, body)
            elif marker == Marker.DHT:
                self._take_huffman_tables(body)
            elif marker == Marker.DQT:
                self._take_quantisers(body)
            elif marker == Marker.DRI:
                if len(body) != 2:
                    raise NotPlain(_RESTARTS)
                self._restart_interval = int.from_bytes(body, "big")
            elif marker == Marker.APP14 and body.startswith(b"Adobe"):
                self._adobe_transforms.add(body[_ADOBE_AT] if len(body) > _ADOBE_AT else -1)
            elif marker == Marker.APP1 and body.startswith(b"Exif\0"):
                if self._has_exif:
                    raise NotPlain("two EXIF blocks")
                self._has_exif = True
            elif marker == Marker.SOS:
                at = self._skip_data(at, units=self._take_scan(body))
            elif marker != Marker.COM and not Marker.APP0 <= marker <= Marker.APP15:
                raise NotPlain(f"segment {marker:02x}")
        return at

    def _take_frame(self, marker: int, body: bytes) -> None:
        if self._frame is not None:
            raise NotPlain("two frames")
        self._frame = plain_frame(marker, body)
        self._lowest_bits = [[_UNSENT] * 64 for _ in self._frame.components]

    def _take_quantisers(self, body: bytes) -> None:
        for at in range(0, len(body), 65):
            # More than 3 is a table that does not exist, or one of 16-bit steps.
            number, steps = body[at], body[at + 1 : at + 65]
            if number > 3 or number in self._quantisers or len(steps) < 64 or 0 in steps:
                raise NotPlain(_QUANTISERS)
            self._quantisers.add(number)
        if self._scans:
            raise NotPlain(_QUANTISERS)

    def _take_huffman_tables(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            slot, symbols = body[at], _huffman_symbols(body[at + 1 :])
            # Only progressive files may send another table under an old number, between scans.
            if slot & ~0x13 or (slot in self._huffman and not self._scans):
                raise NotPlain(_HUFFMAN)
            if not symbols <= (_PROGRESSIVE_AC_SYMBOLS if slot & 0x10 else _DC_SYMBOLS):
                raise NotPlain(_HUFFMAN)
            self._huffman[slot] = symbols
            at += 17 + len(symbols)

    def _take_scan(self, body: bytes) -> int:
        """Check a scan's header against the earlier segments; return the number of its units."""
        frame = self._frame
        if frame is None or not frame.quantisers <= self._quantisers:
            raise NotPlain(_TABLES)
        if len(frame.components) == 3 and not self._adobe_transforms <= {_ADOBE_YCBCR}:
            raise NotPlain("RGB colour space" if 0 in self._adobe_transforms else _ADOBE)
        count = body[0] if body else 0
        if not count or len(body) != 4 + 2 * count:
            raise NotPlain(_SCANS)
        identities, selectors = body[1 : 1 + 2 * count : 2], body[2 : 2 + 2 * count : 2]
        numbers = [n for n, c in enumerate(frame.components) if c.identity in identities]
        if bytes(frame.components[n].identity for n in numbers) != identities:
            raise NotPlain(_SCANS)  # unknown, twice, or out of order
        first, last, precision = body[-3:]
        self._take_coefficients(frame, numbers, first, last, precision >> 4, precision & 15)
        for selector in selectors:
            self._check_selector(frame, selector, is_dc=first == 0, is_first=precision < 16)
        if frame.is_progressive and self._restart_interval:
            raise NotPlain("restart markers in progressive scans")
        self._scans += 1
        return frame.units(numbers)

    def _take_coefficients(
        self, frame: Frame, numbers: list[int], first: int, last: int, high: int, low: int
    ) -> None:
        """Record the bits that a scan sends: `low` and up, or `low` alone after `high`."""
        if frame.is_progressive:
            is_alone = len(numbers) == 1
            follows = low == high - 1 if high else low <= _HIGHEST_SHIFT
            is_valid = follows and (last == 0 if first == 0 else first <= last < 64 and is_alone)
        else:
            is_whole = len(numbers) == len(frame.components)
            is_valid = is_whole and (first, last, high, low) == (0, 63, 0, 0)
        for n in numbers if is_valid else ():
            lowest = self._lowest_bits[n]
            expected = [high or _UNSENT] * (last + 1 - first)
            is_valid &= lowest[first : last + 1] == expected
            is_valid &= first == 0 or lowest[0] != _UNSENT
            lowest[first : last + 1] = [low] * len(expected)
        if not is_valid:
            raise NotPlain(_SCANS)

    def _check_selector(self, frame: Frame, selector: int, *, is_dc: bool, is_first: bool) -> None:
        """Check a component's choice of tables, in a first or a later scan."""
        dc, ac = selector >> 4, 0x10 | selector & 15
        if max(dc, ac & 15) > (3 if frame.is_progressive else 1):
            raise NotPlain(_HUFFMAN)
        needs_ac = not (is_dc and frame.is_progressive)
        if (is_dc and is_first and dc not in self._huffman) or (
            needs_ac and ac not in self._huffman
        ):
            raise NotPlain(_TABLES)
        if not frame.is_progressive and not self._huffman[ac] <= _AC_SYMBOLS:
            raise NotPlain(_HUFFMAN)

    def _skip_data(self, at: int, units: int) -> int:
        """Skip a scan's data and restart markers, and return the position of the next marker."""
        interval = self._restart_interval or units
        restarts = cells(units, interval) - 1
        start = at
        for number, found in enumerate(_marker_in_data.finditer(self._data, at)):
            if found.start() == start:
                raise NotPlain(_RESTARTS)  # no data at all
            start = found.end()
            self.data_ends.append(found.start())
            if number == restarts:
                return found.start()
            if found[0][1] != Marker.RST0 + number % 8:
                raise NotPlain(_RESTARTS)
        raise NotPlain("no end marker")


def _huffman_symbols(table: bytes) -> frozenset[int]:
    """Return the symbols of a table, which begins with the number of codes of length 1 to 16."""
    counts, count = table[:16], sum(table[:16])
    symbols = frozenset(table[16 : 16 + count])
    # The code of all ones must stay free, so that no data looks like a marker.
    used = sum(n << (16 - length) for length, n in enumerate(counts, 1))
    if len(counts) < 16 or not count or len(symbols) != count or used >= 1 << 16:
        raise NotPlain(_HUFFMAN)
    return symbols
