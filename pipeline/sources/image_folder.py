"""A source of labelled images: a folder laid out as train/<class>/* and val/<class>/*."""

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from accelssl.errors import UserError
from accelssl.pipeline.sources.source import Ignored, SourceImage

SPLITS = ("train", "val")
_JPEG_EXTENSIONS = {".jpg", ".jpeg", ".jpe", ".jfif"}
_OTHER_EXTENSIONS = {".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif"}
EXTENSIONS = frozenset(_JPEG_EXTENSIONS | _OTHER_EXTENSIONS)
_LAYOUT = "Lay the images out as train/<class>/<image> and, if you have them, val/<class>/<image>."


class ImageFolder:
    """The images of a source folder. A label is a position in the sorted class names of train.

    Holds little more than the file names: ImageNet-1k takes about 100 MB.
    Raises UserError when the folder is missing, unreadable or laid out otherwise, when a class of
    train is empty (labels would depend on whether it counts), or val has a class that train lacks.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.options: Mapping[str, int | str] = {}
        self.notes: tuple[str, ...] = ()
        self.ignored = Ignored()
        self._names: dict[str, list[str]] = {}
        self._labels: dict[str, array[int]] = {}
        found = _entries(root)
        for entry in found:
            if not (entry.name in SPLITS and entry.is_dir()):
                self.ignored.add(entry.name)
        if "train" not in {entry.name for entry in found if entry.is_dir()}:
            raise UserError(f"{root} has no folder named train.", _LAYOUT)
        train = self._class_entries("train")
        self.classes: tuple[str, ...] = tuple(entry.name for entry in train)
        self._list_images("train", train)
        if any(entry.name == "val" and entry.is_dir() for entry in found):
            val = self._class_entries("val")
            unknown = sorted({entry.name for entry in val} - set(self.classes))
            if unknown:
                raise UserError(
                    f"{root / 'val'} has {len(unknown)} classes that train lacks: "
                    f"{', '.join(unknown[:5])}{', ...' if len(unknown) > 5 else ''}.",
                    "Use the same class names in both, and remove classes without training images.",
                )
            self._list_images("val", val)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._names)

    def count(self, split: str) -> int:
        """The number of images in a split."""
        return len(self._names[split])

    def image(self, split: str, i: int) -> SourceImage:
        """The i-th image of a split, by class and then by file name."""
        label, name = self._labels[split][i], self._names[split][i]
        wnid = self.classes[label]
        return FolderImage(label, wnid, name, os.path.join(self.root, split, wnid, name))  # noqa: PTH118

    def _class_entries(self, split: str) -> list[os.DirEntry[str]]:
        folder = self.root / split
        classes = []
        for entry in _entries(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                classes.append(entry)
            else:
                self.ignored.add(f"{split}/{entry.name}")
        if not classes:
            raise UserError(f"{folder} has no class folders.", _LAYOUT)
        return classes

    def _list_images(self, split: str, classes: list[os.DirEntry[str]]) -> None:
        names: list[str] = []
        labels = array("i")
        label_of = {name: label for label, name in enumerate(self.classes)}
        for class_entry in classes:
            before = len(names)
            names.extend(self._image_names(split, class_entry))
            labels.extend([label_of[class_entry.name]] * (len(names) - before))
            if split == "train" and len(names) == before:
                raise UserError(
                    f"The class folder {class_entry.path} has no images.",
                    "Put images into it, or remove it.",
                )
        if not names:
            raise UserError(f"{self.root / split} has no images.", "Fill the folder or remove it.")
        self._names[split], self._labels[split] = names, labels

    def _image_names(self, split: str, class_entry: os.DirEntry[str]) -> Iterator[str]:
        for entry in _entries(Path(class_entry.path)):
            extension = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - 1.28M of them
            # A dangling link was meant to be an image: it goes on, to be quarantined by name.
            is_file = entry.is_file() or (entry.is_symlink() and not entry.is_dir())
            if is_file and extension in EXTENSIONS and not entry.name.startswith("."):
                yield entry.name
            else:
                self.ignored.add(f"{split}/{class_entry.name}/{entry.name}")


@dataclass(frozen=True, slots=True)
class FolderImage:
    """An image file of a folder."""

    label: int
    wnid: str
    name: str
    path: str

    def read(self) -> bytes:
        """The file's bytes, or OSError."""
        return Path(self.path).read_bytes()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """A folder's entries sorted by name: the order the file system gives differs between copies."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(
            f"The source {folder} cannot be read: {error.strerror}.",
            "Check the path and its permissions.",
        ) from None
