"""Detection of the layout of a source: the place of each split."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from accelssl.errors import UserError
from accelssl.shards.sources.devkit import DEVKIT_NAMES
from accelssl.shards.sources.folder_entries import refuse_special, scanned
from accelssl.shards.sources.source import Ignored
from accelssl.shards.sources.split_parts import find_parts, find_sample_tars, opened, some
from accelssl.shards.sources.walk_folder import holds_classes

LAYOUT_REMEDY = (
    "Lay the images out as train/<class>/<image> and, if you have them, val/<class>/<image>, "
    "or name a folder with ImageNet's archives as they were downloaded."
)
# Kaggle's, and that of the repository which holds train_images_0.tar.gz and so on.
_NESTED = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "data")


class Part(NamedTuple):
    """A folder or tar with images of a split, and its name for messages ("" for the source)."""

    path: Path
    place: str


@dataclass(frozen=True)
class Layout:
    """The places of a source's splits. `train` has at least one part.

    Entries of the source that are named in `passed_over` are no part of train. If
    `val_may_be_in_train` then train is one tar, which may hold folders for both.
    """

    train: tuple[Part, ...]
    val: tuple[Part, ...]
    devkit: Path | None
    passed_over: frozenset[str] = field(default_factory=frozenset)
    val_may_be_in_train: bool = False
    notes: tuple[str, ...] = ()


def find_layout(source: Path, val: Path | None, devkit: Path | None, ignored: Ignored) -> Layout:
    """Find the splits of a source. `val` and `devkit` are the user's own choices, or None.

    Raises UserError when something is missing, compressed, or of an unknown layout, and when both
    splits are the same.
    """
    if str(source).startswith("s3:"):
        raise UserError(
            f"The source {source} is on object storage.", "Copy it to a local disk first."
        )
    for named in (source, val):
        if named is not None:
            refuse_special(named)
    if val is not None and _is_same(source, val):
        raise UserError(
            f"{val} is named as the source and as --val.", "Name another one as --val, or none."
        )
    if os.path.isfile(source):  # noqa: PTH113 - Path's raises for names that are too long
        val_parts = () if val is None else _parts(source, (val,), "val", ignored)
        whole = Part(source, source.name)
        return Layout((whole,), val_parts, devkit, val_may_be_in_train=val is None)
    root = _root(source)
    found_train = find_parts(root, "train")
    found_val = find_parts(root, "val") if val is None else (val,)
    devkit = devkit or _devkit(source) or _devkit(root)
    used = _names_in(root, [*found_train, *found_val, *([devkit] if devkit else [])])
    if not found_train and holds_classes(source, used):
        val_parts = _parts(source, found_val, "val", ignored)
        return Layout((Part(source, ""),), val_parts, devkit, passed_over=used)
    if not found_train:
        found_train = find_sample_tars(source, "train", unnamed="train")
        found_val = found_val or find_sample_tars(source, "val", unnamed="train")
        used |= _names_in(root, [*found_train, *found_val])
    if not found_train:
        raise UserError(
            f"{source} has no folder named train, no ImageNet archives and no class folders.",
            LAYOUT_REMEDY,
        )
    unused = _ignore_others(source, root, used, ignored)
    train_parts = _parts(source, found_train, "train", ignored)
    val_parts = _parts(source, found_val, "val", ignored)
    return Layout(train_parts, val_parts, devkit, notes=_notes(unused))


def _is_same(source: Path, val: Path) -> bool:
    try:
        return val.samefile(source)
    except OSError:
        return False  # whoever opens them will say what is wrong


def _root(source: Path) -> Path:
    """Return the folder with train, or the source."""
    for nested in _NESTED:
        root = source / nested
        is_there = not nested or os.path.isdir(root)  # noqa: PTH112 - as above
        if is_there and find_parts(root, "train"):
            return root
    return source


def _parts(source: Path, found: Sequence[Path], split: str, ignored: Ignored) -> tuple[Part, ...]:
    parts = []
    for part in found:
        inner = opened(part, split)
        parts += [Part(path, _place(source, path)) for path in inner]
        if inner != (part,):
            _ignore_others(source, part, {path.name for path in inner}, ignored)
    return tuple(parts)


def _ignore_others(
    source: Path, folder: Path, used: "set[str] | frozenset[str]", ignored: Ignored
) -> list[str]:
    """Count a folder's unused entries and return their names, sorted."""
    unused = sorted({entry.name for entry in scanned(folder)} - used)
    for name in unused:
        ignored.add(_place(source, folder / name))
    return unused


def _place(source: Path, path: Path) -> str:
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else str(path)


def _names_in(folder: Path, paths: Sequence[Path]) -> frozenset[str]:
    """Return the names of the paths in the folder, for links also the names of their targets."""
    inside = _real(folder)
    places = [place for path in paths for place in (_real(path.parent) / path.name, _real(path))]
    return frozenset(place.name for place in places if place.parent == inside)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for links that lead in circles


def _devkit(folder: Path) -> Path | None:
    return next((folder / name for name in DEVKIT_NAMES if (folder / name).exists()), None)


def _notes(unused: Sequence[str]) -> tuple[str, ...]:
    """Describe an unused entry that looks like a part of the source."""
    passed_by = [
        name
        for name in unused
        if (name.endswith(".tar") and "test" not in name) or name in ("validation", "valid", "test")
    ]
    if not passed_by:
        return ()
    return (f"Not read, as train and val are elsewhere or go by other names: {some(passed_by)}.",)
