"""The parts of a split, found by name: its folder, or its usual archives."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from accelssl.errors import UserError
from accelssl.shards.sources.folder_entries import EntryKind, kind_of, scanned
from accelssl.shards.sources.walk_folder import holds_images_or_classes
from accelssl.shards.sources.walk_webdataset import holds_samples

_COMPRESSED = re.compile(r"(.+)\.(tar\.(gz|bz2|xz|zst)|tgz|tbz2|txz)")
_WORD = re.compile("[A-Za-z]+")
_SPLIT_OF_WORD = {"train": "train", "val": "val", "validation": "val", "test": "test"}


def find_parts(folder: Path, split: str) -> tuple[Path, ...]:
    """Return the parts of a split in the most unpacked form found, or () if there is none.

    Raises UserError when an archive is compressed and nothing of it is there uncompressed.
    """
    is_folder = _candidates(folder, split)
    names = _most_unpacked(is_folder, split)
    if not names or re.match(f"{split}_images", names[0]):  # one of several might be lost
        wanted = rf"ILSVRC2012_img_{split}|{split}|{split}_images(_[0-9]+)?"
        _refuse_compressed(folder, is_folder, wanted)
    return tuple(folder / name for name in names)


def find_sample_tars(folder: Path, split: str, *, unnamed: str) -> tuple[Path, ...]:
    """Return the WebDataset tars of a split by a word in the name: train, val, validation, test.

    Tars without such a word belong to the split `unnamed`. Raises UserError when some are
    compressed.
    """
    names = [
        entry.name
        for entry in scanned(folder)
        if not entry.name.startswith(".")
        and kind_of(entry) in (EntryKind.FILE, EntryKind.BROKEN_LINK)
    ]
    tars = [folder / name for name in sorted(names) if name.endswith(".tar")]
    if not tars or not holds_samples(tars[0]):
        return ()
    _refuse_compressed(folder, names, ".*")
    return tuple(tar for tar in tars if (_split_by_words(tar.name) or unnamed) == split)


def opened(part: Path, split: str) -> tuple[Path, ...]:
    """Return the part, or its content if the part is a folder of the split's archives."""
    if os.path.isfile(part):  # noqa: PTH113 - Path's raises for names that are too long
        return (part,)
    inner = frozenset(_most_unpacked(_candidates(part, split), split))
    if holds_images_or_classes(part, inner):
        return (part,)
    return find_parts(part, split) or find_sample_tars(part, split, unnamed=split) or (part,)


def some(names: Sequence[str]) -> str:
    """Return the first few names, for messages."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _split_by_words(name: str) -> str | None:
    splits = (_SPLIT_OF_WORD.get(word.lower()) for word in _WORD.findall(name))
    return next((split for split in splits if split), None)


def _candidates(folder: Path, split: str) -> dict[str, bool]:
    """Return, for each entry whose name begins like a split's, True if it is a folder."""
    begins = (split, f"ILSVRC2012_img_{split}")
    kinds = {e.name: kind_of(e) for e in scanned(folder) if e.name.startswith(begins)}
    return {
        name: kind is EntryKind.FOLDER
        for name, kind in kinds.items()
        if kind is not EntryKind.SPECIAL
    }


def _most_unpacked(is_folder: dict[str, bool], split: str) -> list[str]:
    for pattern, wants_folder in (
        (split, True),
        (f"ILSVRC2012_img_{split}", True),
        (rf"{split}_images(_[0-9]+)?", True),
        (rf"ILSVRC2012_img_{split}\.tar", False),
        (rf"{split}\.tar", False),
        (rf"{split}_images(_[0-9]+)?\.tar", False),
    ):
        names = [name for name in is_folder if re.fullmatch(pattern, name)]
        if found := sorted(name for name in names if is_folder[name] == wants_folder):
            return found
    return []


def _refuse_compressed(folder: Path, names: Iterable[str], wanted: str) -> None:
    there = set(names)
    compressed = [
        name
        for name in sorted(there)
        if (match := _COMPRESSED.fullmatch(name))
        and re.fullmatch(wanted, match[1])
        and not {match[1], f"{match[1]}.tar"} & there
    ]
    if compressed:
        raise UserError(
            f"{len(compressed)} archives in {folder} are compressed, so nothing in them can be "
            f"read in place: {some(compressed)}.",
            f"Decompress each, as with `gunzip {compressed[0]}`; it stays one file.",
        )
