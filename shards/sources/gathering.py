"""Collection of a split's images, first as they are found, then in order."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.shards.sources.image_name import parse_name
from accelssl.shards.sources.label_votes import LabelVotes
from accelssl.shards.sources.listing import (
    WHOLE_FILE,
    Container,
    SplitListing,
    Stamp,
    whole_file_with_appended,
)

_EXAMPLES = 3


class Gathering:
    """The images of a split in the order found.

    `on_found` is called for each image. `unknown` counts the images of an unknown class, and
    `unknown_examples` has the first by name.
    """

    def __init__(self, votes: LabelVotes, on_found: Callable[[], None]) -> None:
        self.class_number: dict[str, int] = {}
        """The classes met, also those without images. Numbered as they were met."""
        self.validation_names = 0
        """Number of images with names of ImageNet's validation set."""
        self.unknown = 0
        self.unknown_examples: list[str] = []
        self._votes = votes
        self._on_found = on_found
        self._containers: list[Container] = []
        self._names: list[str] = []
        self._class_numbers = array("i")
        self._container_numbers = array("i")
        self._offsets = array("q")
        self._sizes_bytes = array("q")

    @property
    def is_validation_set(self) -> bool:
        """True if all names are names of ImageNet's validation images."""
        return 0 < self.validation_names == len(self._names) + self.unknown

    @property
    def is_untouched(self) -> bool:
        """True if neither a class nor an image was found."""
        return not self.class_number and not self.unknown

    def add_class(self, name: str) -> None:
        """Add a class, with or without images."""
        self.class_number.setdefault(name, len(self.class_number))

    def add_container(self, path: str, stamp: Stamp | None = None) -> int:
        """Add a folder, or a tar with its stamp, and return its number for `add`."""
        self._containers.append(Container(path, stamp))
        return len(self._containers) - 1

    def add(
        self,
        place: str,
        folder: str | None,
        file_name: str,
        container: int,
        offset: int = WHOLE_FILE,
        size_bytes: int = 0,
    ) -> None:
        """Add an image. `folder` is its class folder; `place` names the folder in messages."""
        self._on_found()
        name = parse_name(file_name)
        self.validation_names += name.val_number is not None
        class_name = self._votes.class_of(place, folder, file_name, name)
        if class_name is None:
            self.unknown += 1
            # Kept sorted: the order that a file system gives differs between copies.
            self.unknown_examples = sorted([*self.unknown_examples, file_name])[:_EXAMPLES]
            return
        # Under another class the appended one is a part of the name like any other.
        if name.appended_wnid == class_name:
            if offset == WHOLE_FILE:
                offset = whole_file_with_appended(class_name)
            file_name = name.name
        number = self.class_number.setdefault(class_name, len(self.class_number))
        self._names.append(file_name)
        self._class_numbers.append(number)
        self._container_numbers.append(container)
        self._offsets.append(offset)
        self._sizes_bytes.append(size_bytes)

    def rename_classes(self, new_name: Mapping[str, str]) -> None:
        """Rename classes, and merge classes of the same name."""
        renamed: dict[str, int] = {}
        new_number = [
            renamed.setdefault(new_name.get(name, name), len(renamed)) for name in self.class_number
        ]
        numbers_N = np.array(new_number, np.int32)[self._classes_N()]
        self.class_number, self._class_numbers = renamed, array("i", numbers_N.tobytes())

    def keep_only(self, chosen: Iterable[str]) -> None:
        """Remove all other classes."""
        kept = frozenset(chosen)
        self.class_number = {name: n for name, n in self.class_number.items() if name in kept}

    def images_by_class(self) -> Mapping[str, int]:
        """Count the images of each class."""
        counts = self._counts()
        return {name: int(counts[number]) for name, number in self.class_number.items()}

    def listing(self, classes: tuple[str, ...], limit_per_class: int | None) -> SplitListing:
        """Return the images sorted by class and name, with at most this number from each class.

        Raises UserError for two images with the same class and name.
        """
        by_class_N = np.argsort(self._classes_N(), kind="stable")
        counts = self._counts()
        ends = np.cumsum(counts)
        order, labels = array("q"), array("i")
        for label, name in enumerate(classes):
            number = self.class_number.get(name)
            if number is None:
                continue
            members = by_class_N[ends[number] - counts[number] : ends[number]].tolist()
            members.sort(key=self._names.__getitem__)
            self._refuse_repeated(name, members)
            members = self._limited(name, members, limit_per_class)
            order.extend(members)
            labels.extend([label] * len(members))
        return SplitListing(
            containers=tuple(self._containers),
            names=[self._names[i] for i in order],
            labels=labels,
            container_numbers=_taken(self._container_numbers, order),
            offsets=_taken(self._offsets, order),
            sizes_bytes=_taken(self._sizes_bytes, order),
        )

    def _classes_N(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self._class_numbers, np.int32)

    def _counts(self) -> npt.NDArray[np.int64]:
        """Return the number of images by class number."""
        most = max(self.class_number.values(), default=-1)
        return np.bincount(self._classes_N(), minlength=most + 1)

    def _refuse_repeated(self, class_name: str, members: list[int]) -> None:
        for one, other in pairwise(members):
            if self._names[one] == self._names[other]:
                places = sorted(
                    {self._containers[self._container_numbers[i]].path for i in (one, other)}
                )
                raise UserError(
                    f"The image {self._names[one]} of the class {class_name} is there twice, in "
                    f"{' and in '.join(places)}.",
                    "Remove one of the two copies.",
                )

    def _limited(self, class_name: str, members: list[int], limit: int | None) -> list[int]:
        if limit is None or len(members) <= limit:
            return members

        def draw(i: int) -> bytes:
            image = f"{class_name}/{self._names[i]}".encode(errors="surrogateescape")
            return blake2b(image, digest_size=16).digest()

        kept = set(sorted(members, key=draw)[:limit])
        return [i for i in members if i in kept]


def _taken(column: "array[int]", order: "array[int]") -> "array[int]":
    values = np.frombuffer(column, f"i{column.itemsize}")[np.frombuffer(order, np.int64)]
    return array(column.typecode, values.tobytes())
