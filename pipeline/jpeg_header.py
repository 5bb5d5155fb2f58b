"""What a JPEG says of itself, without decoding: its size, and whether every decoder reads it alike.

Walks the whole file as ISO/IEC 10918-1 annex B lays it out: segments, scans, restart markers. The
coefficients themselves are not looked at: that is the full decode's job.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_DHT, _RST0, _SOS, _DQT, _DRI, _COM = 0xC4, 0xD0, 0xDA, 0xDB, 0xDD, 0xFE
_APP0, _APP1, _APP14, _APP15 = 0xE0, 0xE1, 0xEE, 0xEF
_PROGRESSIVE = 0xC2
_CODED_ALIKE = (0xC0, 0xC1, _PROGRESSIVE)  # C0 baseline, C1 the same with more tables
# All start-of-frame markers: C0-CF without DHT (C4), JPG (C8) and DAC (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, 0xCC}
_ADOBE_AT, _ADOBE_YCBCR = 11, 1

_STRAY, _TABLES, _SCANS = "stray bytes in the header", "tables missing", "unusual scans"
_HUFFMAN, _QUANTISERS = "unusual Huffman tables", "unusual quantisation tables"
_RESTARTS, _ADOBE = "unusual restart markers", "unusual Adobe marker"

_YCBCR_IDENTITIES = (b"\x01\x02\x03", b"\x00\x01\x02")
# Luma's (across, down) where chroma has (1, 1): 4:4:4, 4:2:2, 4:4:0, 4:2:0, 4:1:1.
_LUMA_FACTORS = frozenset({(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)})

# What a symbol may say in 8 bits (annexes F and G): the length of a DC difference; the zeros before
# an AC coefficient and its length; in progressive scans also how many blocks end.
_DC_SYMBOLS = frozenset(range(12))
_AC_SYMBOLS = frozenset({0x00, 0xF0} | {16 * run + n for run in range(16) for n in range(1, 11)})
_PROGRESSIVE_AC_SYMBOLS = _AC_SYMBOLS | {16 * run for run in range(15)}
_UNSENT, _HIGHEST_SHIFT = 99, 13

_marker_in_data = re.compile(rb"\xff[^\x00]", re.DOTALL)


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(height, width) in pixels as stored, before any EXIF rotation. ValueError if not found."""
    for marker, body, _ in _segments(data, len(_SOI)):
        if marker in _FRAMES:
            if len(body) < 5:
                break
            height, width = struct.unpack_from(">HH", body, 1)
            if height and width:
                return height, width
            break
    raise ValueError("no JPEG frame header with a size")


class NotPlain(ValueError):
    """Not every decoder reads this JPEG alike; the text says what is unusual, in a few words."""


def why_not_plain(data: bytes) -> str | None:
    """What is unusual about a JPEG, or None: see `plain_data_ends`."""
    try:
        plain_data_ends(data)
    except NotPlain as reason:
        return str(reason)
    return None


def plain_data_ends(data: bytes) -> tuple[int, ...]:
    """Where each run of coded data ends in a plain JPEG, as positions of the markers there.

    Plain is a whole file of one frame: Huffman-coded baseline in one scan, or progressive whose
    scans send each bit of each coefficient once; 8 bits; gray, or YCbCr with chroma sampled 1 x 1
    and nothing that hints at other colours; every table valid, sent once (progressive: as often as
    need be) and before the scan that uses it; restart markers in baseline only, exactly where they
    belong, and no stray byte up to the end marker. What follows that marker no decoder reads.

    Raises NotPlain: decoders refuse such a file, or make pixels of it that differ between them.
    """
    plain = _Plain(data)
    plain.read()
    return tuple(plain.data_ends)


def _segments(data: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """(marker, body, where it ends) of each segment from `at` up to the next scan's header.

    NotPlain where they end early.
    """
    if not data.startswith(_SOI):
        raise NotPlain("not a JPEG")
    marker = 0
    while marker != _SOS:
        if at + 4 > len(data) or data[at] != 0xFF:
            raise NotPlain(_STRAY)
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker == 0xFF:  # fill byte, allowed before any marker
            at += 1
            continue
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or length < 2 or at + 2 + length > len(data):
            raise NotPlain(_STRAY)
        yield marker, data[at + 4 : at + 2 + length], at + 2 + length
        at += 2 + length


@dataclass(frozen=True, slots=True)
class _Component:
    """One colour of a frame, with its sampling factors."""

    identity: int
    across: int
    down: int
    quantiser: int


@dataclass(frozen=True, slots=True)
class _Frame:
    marker: int
    height: int
    width: int
    components: tuple[_Component, ...]

    @property
    def is_progressive(self) -> bool:
        return self.marker == _PROGRESSIVE

    @property
    def quantisers(self) -> set[int]:
        return {component.quantiser for component in self.components}

    def units(self, numbers: list[int]) -> int:
        """How many units a scan of these components codes, between which restarts may fall."""
        luma = self.components[0]
        if len(numbers) > 1:
            return _cells(self.height, 8 * luma.down) * _cells(self.width, 8 * luma.across)
        alone = self.components[numbers[0]]
        height = _cells(self.height * alone.down, luma.down)
        width = _cells(self.width * alone.across, luma.across)
        return _cells(height, 8) * _cells(width, 8)


def _cells(length: int, side: int) -> int:
    return -(-length // side)


class _Plain:
    """Reads a JPEG from front to end, and raises NotPlain where it is not."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._frame: _Frame | None = None
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
        at = len(_SOI)
        while not self._scans or self._data[at : at + 2] != _EOI:
            at = self._read_scan(at)
        if any(any(lowest) for lowest in self._lowest_bits):
            raise NotPlain(_SCANS)

    def _read_scan(self, at: int) -> int:
        """Take in the segments and the data of the next scan, and return where that ends."""
        for marker, body, end in _segments(self._data, at):
            if end != at + 4 + len(body):
                raise NotPlain(_STRAY)  # fill bytes
            at = end
            if marker in _FRAMES:
                self._take_frame(marker, body)
            elif marker == _DHT:
                self._take_huffman_tables(body)
            elif marker == _DQT:
                self._take_quantisers(body)
            elif marker == _DRI:
                if len(body) != 2:
                    raise NotPlain(_RESTARTS)
                self._restart_interval = int.from_bytes(body, "big")
            elif marker == _APP14 and body.startswith(b"Adobe"):
                self._adobe_transforms.add(body[_ADOBE_AT] if len(body) > _ADOBE_AT else -1)
            elif marker == _APP1 and body.startswith(b"Exif\0"):
                if self._has_exif:
                    raise NotPlain("two EXIF blocks")
                self._has_exif = True
            elif marker == _SOS:
                at = self._skip_data(at, units=self._take_scan(body))
            elif marker != _COM and not _APP0 <= marker <= _APP15:
                raise NotPlain(f"segment {marker:02x}")
        return at

    def _take_frame(self, marker: int, body: bytes) -> None:
        if self._frame is not None:
            raise NotPlain("two frames")
        self._frame = _frame(marker, body)
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
        """Check a scan's header against what came before it. Returns how many units it codes."""
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
        self, frame: _Frame, numbers: list[int], first: int, last: int, high: int, low: int
    ) -> None:
        """Note what a scan sends: bits `low` and up, or bit `low` alone after bit `high`."""
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

    def _check_selector(self, frame: _Frame, selector: int, *, is_dc: bool, is_first: bool) -> None:
        """Check a component's choice of tables, in a scan that sends first bits or a later one."""
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
        """Pass over a scan's data and restart markers, and return where the next marker is."""
        interval = self._restart_interval or units
        restarts = _cells(units, interval) - 1
        start = at
        for number, found in enumerate(_marker_in_data.finditer(self._data, at)):
            if found.start() == start:
                raise NotPlain(_RESTARTS)  # no data at all
            start = found.end()
            self.data_ends.append(found.start())
            if number == restarts:
                return found.start()
            if found[0][1] != _RST0 + number % 8:
                raise NotPlain(_RESTARTS)
        raise NotPlain("no end marker")


def _frame(marker: int, body: bytes) -> _Frame:
    if marker not in _CODED_ALIKE:
        raise NotPlain("arithmetic or lossless coding")
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise NotPlain(_STRAY)
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise NotPlain(f"{precision} bits")
    if count not in (1, 3):
        raise NotPlain(f"{count} colour components")
    components = tuple(
        _Component(identity, factors >> 4, factors & 15, quantiser)
        for identity, factors, quantiser in struct.iter_unpack("BBB", body[6:])
    )
    identities = bytes(component.identity for component in components)
    if identities == b"RGB":
        raise NotPlain("RGB colour space")
    if count == 3 and identities not in _YCBCR_IDENTITIES:
        raise NotPlain("unusual component numbers")
    luma, *chroma = ((component.across, component.down) for component in components)
    if not height or not width:
        raise NotPlain("no size")
    if luma not in (_LUMA_FACTORS if chroma else {(1, 1)}) or set(chroma) - {(1, 1)}:
        raise NotPlain("unusual sampling factors")
    return _Frame(marker, height, width, components)


def _huffman_symbols(table: bytes) -> frozenset[int]:
    """The symbols of a table that begins with the count of codes of each length from 1 to 16."""
    counts, count = table[:16], sum(table[:16])
    symbols = frozenset(table[16 : 16 + count])
    # The code of all ones must stay free, so that no data looks like a marker.
    used = sum(n << (16 - length) for length, n in enumerate(counts, 1))
    if len(counts) < 16 or not count or len(symbols) != count or used >= 1 << 16:
        raise NotPlain(_HUFFMAN)
    return symbols
