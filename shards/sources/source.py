"""Interface between a source of labelled images and the code that writes shards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from accelssl.errors import UserError

SPLITS = ("train", "val")
_EXAMPLES = 20


class SourceChanged(UserError):
    """The source has changed after it was listed: the file might hold another image."""


class SourceImage(Protocol):
    """One labelled image of a source. Plans travel between processes, so it must pickle."""

    @property
    def label(self) -> int: ...
    @property
    def wnid(self) -> str:
        """Name of the image's class."""

    @property
    def name(self) -> str:
        """The original file name."""

    def read(self) -> bytes:
        """Return the file's bytes. Raise SourceChanged for a changed file, or OSError."""


@dataclass
class Ignored:
    """The entries of a source that are no images: their number, and the first ones by path.

    `deeper_images` counts images that are not read because they lie deeper than in the folder of
    their class, and `first_deeper` is the first of them by path. A folder of such images is one
    entry.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)
    deeper_images: int = 0
    first_deeper: str = ""

    def add(self, path: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(path)

    def note_deeper(self, path: str) -> None:
        self.deeper_images += 1
        self.first_deeper = min(self.first_deeper or path, path)

    def notes(self) -> tuple[str, ...]:
        """Notes for the user, a sentence each."""
        if not self.deeper_images:
            return ()
        count = self.deeper_images
        lie, are = ("1 image lies", "is") if count == 1 else (f"{count:,} images lie", "are")
        return (
            f"{lie} deeper than train/<class>/ or val/<class>/ and {are} not read, first "
            f"{self.first_deeper}.",
        )


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
        """Return the number of images in a split."""

    def image(self, split: str, i: int) -> SourceImage:
        """Return the i-th image of a split, by class and then by file name."""

    @property
    def options(self) -> Mapping[str, int | str]:
        """The selection of images for the manifest, without their place."""

    @property
    def ignored(self) -> Ignored: ...
    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about the source, a sentence each."""
