"""The index beside each tar: the place of every component of every sample.

The text format is version 1.2 of the index of NVIDIA DALI's webdataset reader. The first line is
`v1.2 <samples>`. Each sample has one line, with an `ext offset size name` group for each component.
The offset is the position of the component's first data byte in the tar. DALI's own indexer derives
offsets from a tar listing and is wrong for some archives; accelssl records them while writing.

Legend: N samples of one tar, C components of a sample, in the order of COMPONENTS (tars that others
wrote may lack the last one).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VERSION = "v1.2"
COMPONENTS = ("jpg", "cls", "json")
_WORDS_PER_COMPONENT = 4
_BLOCK_BYTES = 512
_MOST_DIGITS = 18  # more than any file needs, and the sum of two such numbers is still an int64
_NO_FIT = "its offsets do not fit the tar"

Int64 = npt.NDArray[np.int64]


class Extent(NamedTuple):
    """Place of one component's data in its tar."""

    offset: int
    size_bytes: int


class ShardIndex(NamedTuple):
    """Places of the components of one tar's samples: both arrays are int64 [N, C]."""

    offset_NC: Int64
    size_bytes_NC: Int64


def index_text(
    keys: Sequence[str],
    extents: Sequence[Sequence[Extent]],
    components: Sequence[str] = COMPONENTS,
) -> str:
    """Return the index of a tar whose n-th sample has the n-th key and the n-th extents.

    Keys have no blanks: the format has no way to write them.
    """
    lines = [f"{VERSION} {len(keys)}\n"]
    for key, of_sample in zip(keys, extents, strict=True):
        groups = (
            f"{ext} {at.offset} {at.size_bytes} {key}.{ext}"
            for ext, at in zip(components, of_sample, strict=True)
        )
        lines.append(" ".join(groups) + "\n")
    return "".join(lines)


def parse_index(
    text: bytes, samples: int, tar_bytes: int, components: Sequence[str] = COMPONENTS
) -> ShardIndex:
    """Parse the index of a tar of `tar_bytes` bytes and `samples` samples, and check both.

    Raises ValueError, saying what is wrong, when the text is not such an index.
    """
    words = text.split()
    if words[:2] != [VERSION.encode(), str(samples).encode()]:
        raise ValueError(f"it does not begin with '{VERSION} {samples}'")
    per_line = _WORDS_PER_COMPONENT * len(components)
    if len(words) != 2 + samples * per_line:
        raise ValueError(f"it does not hold {samples} samples of {', '.join(components)}")
    offset_NC = np.empty((samples, len(components)), np.int64)
    size_bytes_NC = np.empty_like(offset_NC)
    # Slices of the flat list of words, column by column: no objects a line, a second for 1.28M.
    for c, ext in enumerate(components):
        at = 2 + c * _WORDS_PER_COMPONENT
        if set(words[at::per_line]) - {ext.encode()}:
            raise ValueError(f"component {c + 1} of a sample is not its {ext}")
        offset_NC[:, c] = _integers(words[at + 1 :: per_line])
        size_bytes_NC[:, c] = _integers(words[at + 2 :: per_line])
    _check_extents(offset_NC, size_bytes_NC, tar_bytes)
    return ShardIndex(offset_NC, size_bytes_NC)


def key_of(text: bytes, sample: int) -> str:
    """Return the key of the sample-th sample of an index that `parse_index` accepts."""
    name = text.split(b"\n")[sample + 1].split()[3]
    return name.decode().rpartition(".")[0]


def _integers(words: list[bytes]) -> list[int]:
    # isdigit() of bytes is ASCII alone: int() would also take signs and underscores.
    if words and not b"".join(words).isdigit():
        raise ValueError("an offset or a size in it is not a whole number")
    if max(map(len, words), default=0) > _MOST_DIGITS:
        raise ValueError(_NO_FIT)
    return list(map(int, words))


def _check_extents(offset_NC: Int64, size_bytes_NC: Int64, tar_bytes: int) -> None:
    """Check that samples follow each other and that each component has its own header block."""
    begin, end = offset_NC.ravel(), (offset_NC + size_bytes_NC).ravel()
    in_order = np.argsort(begin, kind="stable")  # others may write a label before its image
    begin, end = begin[in_order], end[in_order]
    follows = begin[1:] >= end[:-1] + _BLOCK_BYTES
    starts_inside = begin[:1] >= _BLOCK_BYTES
    samples_follow = offset_NC[1:].min(axis=1) > offset_NC[:-1].max(axis=1)
    if not (follows.all() and starts_inside.all() and samples_follow.all()):
        raise ValueError("its components overlap or are out of order")
    if (begin % _BLOCK_BYTES).any() or (end[-1:] > tar_bytes).any():
        raise ValueError(_NO_FIT)
