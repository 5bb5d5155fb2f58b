"""What a source of labelled images is to those who write shards from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

SPLITS = ("train", "val")
_EXAMPLES = 20


class SourceImage(Protocol):
    """One labelled image of a source. Plans travel between processes, so it must pickle."""

    @property
    def label(self) -> int: ...
    @property
    def wnid(self) -> str:
        """The name of its class."""

    @property
    def name(self) -> str:
        """The original file name."""

    def read(self) -> bytes:
        """The file's bytes, or OSError."""


@dataclass
class Ignored:
    """What a source holds besides images: how many entries, and the first of them by path."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(path)


class Source(Protocol):
    """Labelled images in a fixed order. A label is a position in the sorted `classes`.

    Order and names depend on the images alone, not on how they are packed, so that the same images
    make the same shards.
    """

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def splits(self) -> tuple[str, ...]: ...
    def count(self, split: str) -> int:
        """The number of images in a split."""

    def image(self, split: str, i: int) -> SourceImage:
        """The i-th image of a split, by class and then by file name."""

    @property
    def options(self) -> Mapping[str, int | str]:
        """Which images were chosen, for the manifest; nothing about where they lie."""

    @property
    def ignored(self) -> Ignored: ...
    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the source, a sentence each."""
