"""The frame of a JPEG: its size and its colours, if every decoder reads them alike."""

import struct
from dataclasses import dataclass

from accelssl.shards.images.jpeg_header import STRAY, NotPlain

_PROGRESSIVE = 0xC2
_CODED_ALIKE = (0xC0, 0xC1, _PROGRESSIVE)  # C0 baseline, C1 the same with more tables
_YCBCR_IDENTITIES = (b"\x01\x02\x03", b"\x00\x01\x02")
# Luma's (across, down) where chroma has (1, 1): 4:4:4, 4:2:2, 4:4:0, 4:2:0, 4:1:1.
_LUMA_FACTORS = frozenset({(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)})


@dataclass(frozen=True, slots=True)
class Component:
    """One colour of a frame, with its sampling factors."""

    identity: int
    across: int
    down: int
    quantiser: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Content of a frame header; height and width are in pixels."""

    marker: int
    height: int
    width: int
    components: tuple[Component, ...]

    @property
    def is_progressive(self) -> bool:
        return self.marker == _PROGRESSIVE

    @property
    def quantisers(self) -> set[int]:
        return {component.quantiser for component in self.components}

    def units(self, numbers: list[int]) -> int:
        """Return the number of units in a scan of these components; restarts come between units."""
        luma = self.components[0]
        if len(numbers) > 1:
            return cells(self.height, 8 * luma.down) * cells(self.width, 8 * luma.across)
        alone = self.components[numbers[0]]
        height = cells(self.height * alone.down, luma.down)
        width = cells(self.width * alone.across, luma.across)
        return cells(height, 8) * cells(width, 8)


def cells(length: int, side: int) -> int:
    """Return the number of pieces of `side` that cover `length`."""
    return -(-length // side)


def plain_frame(marker: int, body: bytes) -> Frame:
    """Parse a frame header. Raise NotPlain where decoders may differ on it."""
    if marker not in _CODED_ALIKE:
        raise NotPlain("arithmetic or lossless coding")
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise NotPlain(STRAY)
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise NotPlain(f"{precision} bits")
    if count not in (1, 3):
        raise NotPlain(f"{count} colour components")
    components = tuple(
        Component(identity, factors >> 4, factors & 15, quantiser)
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
    return Frame(marker, height, width, components)
