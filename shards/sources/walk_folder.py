"""Search of a folder for the images of a split: class folders, class tars, single images."""

import os
from pathlib import Path

from accelssl.errors import UserError
from accelssl.shards.sources.folder_entries import EntryKind, images_below, kind_of, scanned
from accelssl.shards.sources.gathering import Gathering
from accelssl.shards.sources.image_name import is_image, is_wnid, parse_name
from accelssl.shards.sources.source import Ignored
from accelssl.shards.sources.walk_tar import walk_class_tar


def walk_folder(
    folder: Path, place: str, gathering: Gathering, ignored: Ignored, passed_over: frozenset[str]
) -> None:
    """Add a folder's images to the gathering.

    `place` names the folder for messages ("" for the source itself). Entries in `passed_over` are
    not looked at. Raises UserError when something cannot be read, is damaged, or when a class is
    there both as a folder and as a tar.
    """
    class_folders, class_tars, others = [], [], []
    container = gathering.add_container(str(folder))
    for entry in scanned(folder):
        if entry.name in passed_over:
            continue
        if _is_class_folder(entry):
            class_folders.append(entry.name)
        elif _is_image_file(entry):
            gathering.add(place or str(folder), None, entry.name, container)
        elif _is_class_tar(entry):
            class_tars.append(entry.name)
        else:
            _refuse_lost_class(entry)
            others.append(entry.name)
    for name in sorted(others):
        ignored.add(_joined(place, name))
    _refuse_half_extracted(folder, class_folders, class_tars)
    for name in sorted(class_folders):
        _walk_class_folder(folder / name, _joined(place, name), gathering, ignored)
    for name in sorted(class_tars):
        walk_class_tar(folder / name, _joined(place, name), gathering, ignored)


def holds_classes(folder: Path, passed_over: frozenset[str]) -> bool:
    """Return True if the folder has a class folder, a class tar or an image named for its class."""
    return any(
        _is_class_folder(entry)
        or _is_class_tar(entry)
        or (_is_image_file(entry) and parse_name(entry.name).train_wnid is not None)
        for entry in scanned(folder)
        if entry.name not in passed_over
    )


def holds_images_or_classes(folder: Path, passed_over: frozenset[str]) -> bool:
    """Return True if the folder has a class folder, a class tar or any image."""
    return any(
        _is_class_folder(entry) or _is_class_tar(entry) or _is_image_file(entry)
        for entry in scanned(folder)
        if entry.name not in passed_over
    )


def _walk_class_folder(folder: Path, place: str, gathering: Gathering, ignored: Ignored) -> None:
    gathering.add_class(folder.name)
    container = gathering.add_container(str(folder))
    for entry in sorted(scanned(folder), key=lambda entry: entry.name):
        if _is_image_file(entry):
            gathering.add(place, folder.name, entry.name, container)
        else:
            ignored.add(f"{place}/{entry.name}")
            if _is_class_folder(entry):
                for image in images_below(folder / entry.name):
                    ignored.note_deeper(f"{place}/{image.relative_to(folder).as_posix()}")


def _is_class_folder(entry: "os.DirEntry[str]") -> bool:
    return not entry.name.startswith(".") and kind_of(entry) is EntryKind.FOLDER


def _is_image_file(entry: "os.DirEntry[str]") -> bool:
    # A broken link was meant to be an image: it goes on, so that what reads it says so.
    return is_image(entry.name) and kind_of(entry) in (EntryKind.FILE, EntryKind.BROKEN_LINK)


def _is_class_tar(entry: "os.DirEntry[str]") -> bool:
    stem, extension = os.path.splitext(entry.name)  # noqa: PTH122
    # A broken link was meant to be one too: whoever opens it refuses it, else a class is lost.
    return (
        extension == ".tar"
        and is_wnid(stem)
        and kind_of(entry) in (EntryKind.FILE, EntryKind.BROKEN_LINK)
    )


def _refuse_lost_class(entry: "os.DirEntry[str]") -> None:
    """Refuse broken links: a missing class folder would shift the labels of later classes."""
    if "." not in entry.name and kind_of(entry) is EntryKind.BROKEN_LINK:
        raise UserError(
            f"The class folder {entry.path} is {EntryKind.BROKEN_LINK.value}.",
            "Repair the link, or remove it.",
        )


def _refuse_half_extracted(folder: Path, class_folders: list[str], class_tars: list[str]) -> None:
    both = sorted({name.removesuffix(".tar") for name in class_tars} & set(class_folders))
    if both:
        raise UserError(
            f"{len(both)} classes are in {folder} both as a folder and as a tar, first {both[0]}.",
            "Remove the folder, which may be extracted in part, or the tar.",
        )


def _joined(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
