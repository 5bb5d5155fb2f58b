"""Search of WebDataset tars for the images of a split; each image has its label beside it.

A sample is a run of members with the same key: 0001.jpg, 0001.cls with the label in digits, and
perhaps 0001.json, of which "wnid" (the class) and "name" (the original file name) are used.
"""

import json
import stat
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from accelssl.errors import UserError
from accelssl.shards.sources.gathering import Gathering
from accelssl.shards.sources.listing import Stamp
from accelssl.shards.sources.sample_parts import REMEDY, sample_parts
from accelssl.shards.sources.source import Ignored
from accelssl.shards.sources.walk_tar import open_tar, refuse_image_without_bytes
from accelssl.shards.tars.tar_members import DamagedTar, TarMember, tar_members
from accelssl.shards.tars.tar_samples import tar_samples

_PEEKED_MEMBERS = 100
_MOST_DIGITS = 9
_LONGEST_LABEL_BYTES = 32


class SampleClasses:
    """The classes of samples: a label for each, and a wnid for some."""

    def __init__(self) -> None:
        self._labels: set[int] = set()
        self._wnid_of: dict[int, str] = {}
        self._label_of: dict[str, int] = {}
        self._have_all_a_wnid = True

    def take(self, place: str, label: int, wnid: str | None) -> str:
        """Add a sample and return the name of its class until `names` gives another.

        Raises UserError if a label goes with two wnids, or a wnid with two labels.
        """
        self._labels.add(label)
        if wnid is None:
            self._have_all_a_wnid = False
            return str(label)
        known = self._wnid_of.setdefault(label, wnid)
        known_label = self._label_of.setdefault(wnid, label)
        if (known, known_label) != (wnid, label):
            raise UserError(
                f"The class of {place} is label {label} and {wnid}, but elsewhere label {label} is "
                f"{known} and {wnid} is label {known_label}.",
                "Correct the labels of the tars.",
            )
        return wnid

    def names(self) -> dict[str, str]:
        """Return the final names of classes: wnids if all samples have one, else padded labels."""
        if self._have_all_a_wnid:
            return {}
        digits = len(str(max(self._labels)))
        names = {str(label): f"{label:0{digits}}" for label in self._labels}
        return names | {wnid: names[str(label)] for wnid, label in self._label_of.items()}


def holds_samples(path: Path) -> bool:
    """Return True if a tar has labels of the WebDataset layout among its first members."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return any(m.path.endswith(".cls") for m in islice(tar_members(file), _PEEKED_MEMBERS))
    except (OSError, DamagedTar):
        return False  # whoever walks it will say what is wrong


def walk_webdataset(
    path: Path, place: str, gathering: Gathering, ignored: Ignored, classes: SampleClasses
) -> None:
    """Add the images of a tar to the gathering. `place` names the tar for messages.

    Raises UserError for an unreadable or damaged tar, for samples that `sample_parts` refuses, and
    for samples with members apart from each other. A .cls without a label and a .json without a
    valid class raise UserError too.
    """
    has_parts: dict[str, bool] = {}  # by key

    def stray(member: TarMember) -> None:
        ignored.add(f"{place}/{member.path}")

    with open_tar(path) as file:
        container = gathering.add_container(str(path), Stamp.of(file))
        for sample in tar_samples(tar_members(file), stray):
            where = f"{place}/{sample.key}"
            parts = sample_parts(place, sample)
            _refuse_apart(where, sample.key, parts is not None, has_parts)
            if parts is None:
                for _, member in sample.members:
                    stray(member)
                continue
            for member in parts.extras:
                stray(member)
            image = parts.image
            refuse_image_without_bytes(path, image)
            wnid, name = _about(file, where, parts.about)
            label = _label(file, where, parts.label)
            gathering.add(
                place,
                classes.take(where, label, wnid),
                name or _name(path, sample.key, image),
                container,
                image.offset,
                image.size_bytes,
            )


def _name(path: Path, key: str, image: TarMember) -> str:
    # Keys of digits alone are counters, which tars often start anew: they are no names.
    is_counter = key.rpartition("/")[2].isdigit()
    return f"{path.stem}/{image.path}" if is_counter else image.path


def _label(file: BinaryIO, where: str, member: TarMember) -> int:
    is_long = member.size_bytes > _LONGEST_LABEL_BYTES
    text = _read(file, member, _LONGEST_LABEL_BYTES).strip()
    # isdigit() of bytes is ASCII alone: int() would also take signs, blanks and underscores.
    if is_long or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise UserError(f"The label of the sample {where} is {text[:20]!r}, no number.", REMEDY)
    return int(text)


def _about(file: BinaryIO, where: str, member: TarMember | None) -> tuple[str | None, str | None]:
    """Return the wnid and the original file name, None where the sample has none."""
    if member is None:
        return None, None
    try:
        about = json.loads(_read(file, member, member.size_bytes))
    except (ValueError, RecursionError) as error:
        fault = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
        raise UserError(
            f"The .json of the sample {where} is {fault}.", "Correct it, or leave it out."
        ) from None
    told = [about.get(key) if isinstance(about, dict) else None for key in ("wnid", "name")]
    wnid, name = (text if isinstance(text, str) and text else None for text in told)
    for key, text in (("wnid", wnid), ("name", name)):
        _refuse_no_text(where, key, text)
    return wnid, name


def _refuse_no_text(where: str, key: str, text: str | None) -> None:
    """Refuse halves of surrogate pairs: JSON can write them, but UTF-8 cannot."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise UserError(
            f"The {key} in the .json of the sample {where} is {text!r}, which is no Unicode text.",
            "Correct it, or leave it out.",
        ) from None


def _refuse_apart(where: str, key: str, is_whole: bool, has_parts: dict[str, bool]) -> None:
    """Refuse a repeated key if one of its samples has an image and a label.

    Then a .json or another member would be lost, or two images go by the same name.
    """
    if has_parts.get(key, False) or (is_whole and key in has_parts):
        raise UserError(
            f"The members of the sample {where} are not side by side, or two samples have its key.",
            "Give each sample a key of its own, and keep its members together.",
        )
    has_parts[key] = is_whole


def _read(file: BinaryIO, member: TarMember, most_bytes: int) -> bytes:
    file.seek(member.offset)
    return file.read(min(member.size_bytes, most_bytes))
