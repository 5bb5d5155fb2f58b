"""Search of an uncompressed tar for the images of a split, which are read in place.

The tar holds class tars (as ILSVRC2012_img_train.tar does), class folders, or images whose names
tell their class.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from accelssl.errors import UserError
from accelssl.shards.sources.folder_entries import refuse_special
from accelssl.shards.sources.gathering import Gathering
from accelssl.shards.sources.image_name import is_image, is_wnid
from accelssl.shards.sources.listing import Stamp
from accelssl.shards.sources.source import SPLITS, Ignored
from accelssl.shards.tars.tar_members import DamagedTar, Kind, TarMember, tar_members

_DOWNLOAD_AGAIN = "Download it again, and compare its size or checksum with that of the original."


def walk_tar(
    path: Path, place: str, split: str, gatherings: Mapping[str, Gathering], ignored: Ignored
) -> None:
    """Add a tar's images to the gathering of the split, or of the split that their folder names.

    `place` names the tar for messages. Images of a split without gathering are ignored.
    Raises UserError when the tar cannot be read, is compressed, damaged, or has links for images.
    """
    _Walk(path, place, split, gatherings, ignored).run()


def walk_class_tar(path: Path, place: str, gathering: Gathering, ignored: Ignored) -> None:
    """Add the images of a tar that is named for its class, such as n01440764.tar."""
    with open_tar(path) as file:
        stamp = Stamp.of(file)
        container = gathering.add_container(str(path), stamp)
        _ClassTar(path.stem, place, container, gathering, ignored).walk(file, 0, stamp.size_bytes)


@contextmanager
def open_tar(path: Path) -> Iterator[BinaryIO]:
    """Open a tar. Turn every error of reading into a UserError that names the tar."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            _refuse_compressed(path, file)
            yield file
    except OSError as error:
        raise UserError(
            f"The source {path} cannot be read: {error.strerror}.",
            "Check the path and its permissions.",
        ) from None
    except DamagedTar as error:
        raise UserError(
            f"{path} cannot be read as a tar archive: {error}.", _DOWNLOAD_AGAIN
        ) from None


class _Walk:
    def __init__(
        self,
        path: Path,
        place: str,
        split: str,
        gatherings: Mapping[str, Gathering],
        ignored: Ignored,
    ) -> None:
        self._path, self._place, self._split = path, place, split
        self._gatherings, self._ignored = gatherings, ignored

    def run(self) -> None:
        with open_tar(self._path) as file:
            stamp = Stamp.of(file)
            self._size_bytes = stamp.size_bytes
            self._containers = {
                name: gathering.add_container(str(self._path), stamp)
                for name, gathering in self._gatherings.items()
            }
            for member in tar_members(file):
                self._take(file, member)

    def _take(self, file: BinaryIO, member: TarMember) -> None:
        split, parts = self._located(member)
        gathering = self._gatherings.get(split)
        if gathering is None or any(part.startswith(".") for part in parts):
            self._ignore(member)
        elif member.kind is Kind.FOLDER or not parts:
            if len(parts) == 1:
                gathering.add_class(parts[0])
        elif len(parts) <= 2 and is_image(parts[-1]):
            refuse_image_without_bytes(self._path, member)
            folder = parts[0] if len(parts) == 2 else None
            place = self._place if folder is None else f"{self._place}/{folder}"
            container = self._containers[split]
            gathering.add(place, folder, parts[-1], container, member.offset, member.size_bytes)
        elif len(parts) == 1 and member.kind is Kind.FILE and _is_class_tar(parts[0]):
            self._take_class_tar(file, member, parts[0], split)
        else:
            self._ignore(member)
            self._note_if_deeper(member, parts)

    def _located(self, member: TarMember) -> tuple[str, list[str]]:
        """Return the split of a member and the rest of its path: tars often include a folder."""
        parts = [part for part in member.path.split("/") if part not in ("", ".")]
        is_inside = len(parts) > 1 or member.kind is Kind.FOLDER
        if parts and is_inside and parts[0] in SPLITS:
            return parts[0], parts[1:]
        if parts and is_inside and parts[0] == self._path.stem and not is_wnid(parts[0]):
            return self._split, parts[1:]
        return self._split, parts

    def _take_class_tar(self, file: BinaryIO, member: TarMember, name: str, split: str) -> None:
        if member.offset + member.size_bytes > self._size_bytes:
            raise DamagedTar(f"it ends after {self._size_bytes} bytes, inside {name}")
        class_tar = _ClassTar(
            name.removesuffix(".tar"),
            f"{self._place}/{name}",
            self._containers[split],
            self._gatherings[split],
            self._ignored,
        )
        try:
            class_tar.walk(file, member.offset, member.size_bytes)
        except DamagedTar as error:
            raise UserError(
                f"{name} in {self._path} is damaged: {error}.", _DOWNLOAD_AGAIN
            ) from None

    def _ignore(self, member: TarMember) -> None:
        self._ignored.add(f"{self._place}/{member.path}")

    def _note_if_deeper(self, member: TarMember, parts: list[str]) -> None:
        if len(parts) > 2 and is_image(parts[-1]) and member.kind is not Kind.FOLDER:
            self._ignored.note_deeper(f"{self._place}/{member.path}")


class _ClassTar:
    """The tar of a class: a file, or a part of one."""

    def __init__(
        self, wnid: str, place: str, container: int, gathering: Gathering, ignored: Ignored
    ) -> None:
        self._wnid, self._place, self._container = wnid, place, container
        self._gathering, self._ignored = gathering, ignored

    def walk(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._gathering.add_class(self._wnid)
        for member in tar_members(file, start=start, size_bytes=size_bytes):
            parts = [part for part in member.path.split("/") if part not in ("", ".")]
            if parts[:1] == [self._wnid]:
                parts = parts[1:]
            is_image_file = parts and is_image(parts[-1]) and member.kind is not Kind.FOLDER
            if len(parts) == 1 and is_image_file:
                refuse_image_without_bytes(Path(self._place), member)
                self._gathering.add(
                    self._place,
                    self._wnid,
                    parts[0],
                    self._container,
                    member.offset,
                    member.size_bytes,
                )
            elif parts:
                self._ignored.add(f"{self._place}/{member.path}")
                if is_image_file and not any(part.startswith(".") for part in parts):
                    self._ignored.note_deeper(f"{self._place}/{member.path}")


def refuse_image_without_bytes(tar: Path, member: TarMember) -> None:
    """Raise UserError for an image whose bytes are not in one piece at the member's place."""
    if member.kind is not Kind.FILE:
        raise UserError(
            f"The image {member.path} in {tar} is {member.kind.value}, which cannot be read in "
            "place.",
            "Extract the archive and use the folder, or pack it again with "
            "`tar --dereference --hard-dereference`.",
        )


def _is_class_tar(name: str) -> bool:
    return name.endswith(".tar") and is_wnid(name.removesuffix(".tar"))


def _refuse_compressed(path: Path, file: BinaryIO) -> None:
    if file.read(2) == b"\x1f\x8b":
        raise UserError(
            f"{path} is compressed, so nothing in it can be read in place.",
            f"Decompress it with `gunzip {path}`; it stays one file.",
        )
