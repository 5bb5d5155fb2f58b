"""The entries of a folder, each with its kind after following links.

Only regular files are ever opened: reading a pipe or a device might never end.
"""

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from accelssl.errors import UserError
from accelssl.shards.sources.image_name import is_image


class EntryKind(Enum):
    """Kind of an entry, or of the target of a link."""

    FILE = "a regular file"
    FOLDER = "a folder"
    BROKEN_LINK = "a link that leads nowhere, in circles, or where one may not look"
    SPECIAL = "a pipe, socket or device"


def scanned(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Yield a folder's entries in no order. Raise UserError for an unreadable folder."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise UserError(
            f"The source {folder} cannot be read: {error.strerror}.",
            "Check the path and its permissions.",
        ) from None


def kind_of(entry: "os.DirEntry[str]") -> EntryKind:
    """Return the kind of an entry."""
    try:
        if entry.is_file():
            return EntryKind.FILE
        if entry.is_dir():
            return EntryKind.FOLDER
    except OSError:
        return EntryKind.BROKEN_LINK
    # os.path.exists is False also for what one may not look at.
    is_there = os.path.exists(entry.path)  # noqa: PTH110 - no Path for each of 1.28M
    return EntryKind.SPECIAL if is_there else EntryKind.BROKEN_LINK


def refuse_special(path: Path) -> None:
    """Raise UserError for a pipe, socket or device, but not for a missing file."""
    # os.path.* rather than Path's: these are False for names that are too long.
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH110, PTH112, PTH113
        raise UserError(f"{path} is {EntryKind.SPECIAL.value}.", "Name a folder or a regular file.")


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder with names of images, in no order.

    Hidden folders are left out, and so are links to folders, which may lead in circles. A folder
    that is itself a link to one that it lies in has none.
    """
    if folder.parent.resolve().is_relative_to(folder.resolve()):
        return
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent) / name for name in names if is_image(name))
