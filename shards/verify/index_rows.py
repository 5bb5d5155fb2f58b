"""The rows of an index, each marked when its member is found in the tar."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from accelssl.shards.shard_index import Extent, parse_index

_WORDS_BEFORE = 2
_WORDS_PER_COMPONENT = 4
_NAME = 3


def is_laid_out(text: bytes, components: Sequence[str]) -> bool:
    """Return True if a valid index has one line a sample, with single blanks.

    Words are found without that, but the key of a sample by its line.
    """
    words = text.split()
    width = _WORDS_PER_COMPONENT * len(components)
    lines = [words[:_WORDS_BEFORE]]
    lines += [words[at : at + width] for at in range(_WORDS_BEFORE, len(words), width)]
    return text == b"".join(b" ".join(line) + b"\n" for line in lines)


class Entry(NamedTuple):
    """The index entry of one component of one sample."""

    row: int
    component: str
    name: str
    extent: Extent


class IndexRows:
    """A parsed index. A text that is no index raises ValueError with the reason."""

    def __init__(
        self, text: bytes, samples: int | None, tar_bytes: int, components: Sequence[str]
    ) -> None:
        """Parse the text. `samples` is the required number; None accepts the number in the text."""
        words = text.split()
        if samples is None:
            said = words[1] if len(words) > 1 else b""
            samples = int(said) if said.isdigit() else 0
        index = parse_index(text, samples, tar_bytes, components)
        self._components = tuple(components)
        width = len(components)
        self._names = [
            word.decode(errors="backslashreplace")
            for word in words[_WORDS_BEFORE + _NAME :: _WORDS_PER_COMPONENT]
        ]
        self._sizes_bytes: list[int] = index.size_bytes_NC.ravel().tolist()
        self._offsets: list[int] = index.offset_NC.ravel().tolist()
        self._entry_at = {offset: n for n, offset in enumerate(self._offsets)}
        self._is_met = bytearray(samples * width)
        self.samples = samples

    def meet(self, offset: int) -> Entry | None:
        """Mark the entry of the member whose data begins at that offset, and return it."""
        n = self._entry_at.get(offset)
        if n is None:
            return None
        self._is_met[n] = True
        return self._entry(n)

    def extents(self, row: int) -> Mapping[str, Extent]:
        """Return the places of a sample's components."""
        width = len(self._components)
        return {
            entry.component: entry.extent
            for entry in map(self._entry, range(row * width, (row + 1) * width))
        }

    def key(self, row: int) -> str:
        return self._names[row * len(self._components)].rpartition(".")[0]

    def not_met(self) -> Iterator[Entry]:
        """Return the entries without a member, in order."""
        return (self._entry(n) for n, is_met in enumerate(self._is_met) if not is_met)

    def _entry(self, n: int) -> Entry:
        row, c = divmod(n, len(self._components))
        extent = Extent(self._offsets[n], self._sizes_bytes[n])
        return Entry(row, self._components[c], self._names[n], extent)
