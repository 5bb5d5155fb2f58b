"""Checks that all readers read the samples of a foreign tar alike."""

import json
from typing import BinaryIO, NamedTuple

from accelssl.shards.adopt.adoption import Findings
from accelssl.shards.adopt.webdataset_names import is_passed_over, why_taken_otherwise
from accelssl.shards.images.image_header import UnusableImage, kept_data_ends, opened_image
from accelssl.shards.images.jpeg_header import SOI, NotPlain
from accelssl.shards.images.plain_jpeg import why_not_plain
from accelssl.shards.shard_index import Extent
from accelssl.shards.tars.tar_members import Kind, TarMember
from accelssl.shards.tars.tar_samples import TarSample, key_and_extension

_COMPONENT_OF = {"jpg": "jpg", "jpeg": "jpg", "cls": "cls", "json": "json"}
# Without class names a larger label is taken for something else, such as an id or a time.
_MOST_CLASSES = 1_000_000
# More than any picture that is accepted takes; a damaged size must not fill the memory.
_LARGEST_IMAGE_BYTES = 1 << 28
_LONGEST_LABEL_BYTES = 32
_LONGEST_JSON_BYTES = 1 << 20
_BLANKS = b" \t\r\n"
_STRAYS = {
    Kind.FOLDER: "folders",
    Kind.FILE: "files without an extension",
    Kind.LINK: "links without an extension",
    Kind.OTHER: "special files without an extension",
}
_HIDDEN = "hidden files"
_EXTRAS = "members of samples other than image, label and JSON"


class _Content(NamedTuple):
    """Facts about a component's bytes: an image's refusal, a label's text, a wnid."""

    problem: str | None = None
    text: bytes = b""
    wnid: str | None = None


class TarJudge:
    """Judge of one tar, which takes its members and then its samples.

    `read` must get each member before its sample comes to `judge`.
    """

    def __init__(self, file: BinaryIO, classes: int | None) -> None:
        """Start a tar. Labels must be below `classes`, if given."""
        self._file, self._classes = file, classes
        self._contents: dict[int, _Content] = {}  # by offset, of the sample under way
        self._keys: set[str] = set()
        self._incomplete: dict[str, tuple[str, str]] = {}  # by key: what it lacks, a member
        self.problems = Findings()
        self.skipped = Findings()
        self.with_json = 0
        self.labels: set[int] = set()
        self.wnids: dict[int, str] | None = {}
        """The class name in the JSON by label; None where some sample has none, or another."""

    def read(self, member: TarMember) -> TarMember:
        """Read a member's bytes if it is an image, label or JSON, and return the member."""
        # It passes over folders and links, and reads of the others all that it calls regular.
        if member.kind in (Kind.FILE, Kind.OTHER):
            problem = why_taken_otherwise(member.path)
            if problem:
                self.problems.add(problem, member.path)
        name = key_and_extension(member.path)
        component = _COMPONENT_OF.get(name[1]) if name else None
        if component and member.kind is Kind.FILE:
            self._contents[member.offset] = self._content(component, member)
        return member

    def take_stray(self, member: TarMember) -> None:
        base = member.path.rpartition("/")[2]
        is_hidden = base.startswith(".") and member.kind is Kind.FILE
        self.skipped.add(_HIDDEN if is_hidden else _STRAYS[member.kind], member.path)

    def judge(self, sample: TarSample) -> list[Extent] | None:
        """Return the places of image, label and JSON (if any), or None for a faulty sample."""
        try:
            return self._judge(sample)
        finally:
            for _, member in sample.members:
                self._contents.pop(member.offset, None)

    def finish(self) -> None:
        """Finish the checks that need all samples."""
        for what, where in self._incomplete.values():
            self.problems.add(what, where)
        self._incomplete.clear()

    def _content(self, component: str, member: TarMember) -> _Content:
        self._file.seek(member.offset)
        if component == "jpg":
            if not member.size_bytes:
                return _Content("an image is an empty file")
            if member.size_bytes > _LARGEST_IMAGE_BYTES:
                return _Content(f"an image has more than {_LARGEST_IMAGE_BYTES} bytes")
            reason = why_not_alike(self._file.read(member.size_bytes))
            return _Content(reason and f"an image is no plain upright JPEG ({reason})")
        if component == "cls":
            return _Content(text=self._file.read(min(member.size_bytes, _LONGEST_LABEL_BYTES + 1)))
        if self.wnids is None or member.size_bytes > _LONGEST_JSON_BYTES:
            return _Content()
        return _Content(wnid=_wnid(self._file.read(member.size_bytes)))

    def _judge(self, sample: TarSample) -> list[Extent] | None:
        dotted = _dotted(sample)
        if dotted:
            self.problems.add("a key has a dot in it", *dotted)
            return None
        by_component = self._components(sample)
        if by_component is None or not self._is_whole(sample, by_component):
            return None
        return self._extents(by_component)

    def _components(self, sample: TarSample) -> dict[str, TarMember] | None:
        """Return image, label and JSON, as far as they are there."""
        names, by_component = set[str](), dict[str, TarMember]()
        for extension, member in sample.members:
            component = _COMPONENT_OF.get(extension)
            problem = None
            if extension in names:
                problem = "a sample has two members of the same name"
            elif component in by_component:
                problem = "a sample has two images"
            elif component and member.kind is not Kind.FILE:
                problem = f"an image, label or JSON is {member.kind.value}"
            if problem:
                self.problems.add(problem, member.path)
                self._keys.add(sample.key)
                return None
            names.add(extension)
            if component:
                by_component[component] = member
            else:
                self.skipped.add(_EXTRAS, member.path)
        return by_component

    def _is_whole(self, sample: TarSample, by_component: dict[str, TarMember]) -> bool:
        """Return True if image and label are there and the sample is in one place."""
        missing = [
            name
            for name, component in (("image (.jpg, .jpeg)", "jpg"), ("label (.cls)", "cls"))
            if component not in by_component
        ]
        where = sample.members[0][1].path
        is_repeated = sample.key in self._keys
        self._keys.add(sample.key)
        if is_repeated and (missing or sample.key in self._incomplete):
            self._incomplete.pop(sample.key, None)
            self.problems.add("the members of a sample are apart from each other", where)
        elif is_repeated:
            self.problems.add("two samples have the same key", where)
        elif missing:
            # Not counted yet: the rest of the sample may be further on.
            self._incomplete[sample.key] = f"a sample has no {' and no '.join(missing)}", where
        return not missing and not is_repeated

    def _extents(self, by_component: dict[str, TarMember]) -> list[Extent] | None:
        image, label_file = by_component["jpg"], by_component["cls"]
        about = by_component.get("json")
        problem = self._contents[image.offset].problem
        if is_passed_over(image.path):
            problem = "webdataset passes over names like this"
        if problem:
            self.problems.add(problem, image.path)
            return None
        digits = self._digits(label_file)
        if digits is None:
            return None
        self.labels.add(int(digits))
        self._note_wnid(int(digits), self._contents[about.offset].wnid if about else None)
        self.with_json += about is not None
        return [
            Extent(image.offset, image.size_bytes),
            # Readers by index take digits alone: a line end, which many writers add, stays outside.
            Extent(label_file.offset, len(digits)),
            *([Extent(about.offset, about.size_bytes)] if about else []),
        ]

    def _digits(self, label_file: TarMember) -> bytes | None:
        """Return the text of a label in range, without blanks after it."""
        text = self._contents[label_file.offset].text
        digits = text.rstrip(_BLANKS)
        # isdigit() of bytes is ASCII alone: int() would also take signs, blanks and underscores.
        if len(text) > _LONGEST_LABEL_BYTES or not digits.isdigit():
            shown = f"{label_file.path} holds {text[:_LONGEST_LABEL_BYTES]!r}"
            self.problems.add("a label is not a whole number in digits alone", shown)
            return None
        count = self._classes or _MOST_CLASSES
        if int(digits) >= count:
            shown = f"{label_file.path} holds {int(digits)}"
            self.problems.add(f"a label is not one of 0 to {count - 1}", shown)
            return None
        return digits

    def _note_wnid(self, label: int, wnid: str | None) -> None:
        if self.wnids is not None and (wnid is None or self.wnids.setdefault(label, wnid) != wnid):
            self.wnids = None


def _dotted(sample: TarSample) -> tuple[str, int] | None:
    """Return the first member that looks like a part of a sample with a dotted key, and the number.

    "img.v2.0001.jpg" has the key "img" for all readers; "0001.mask.jpg" may belong to "0001".
    """
    by_stem: dict[str, set[str]] = {}
    for extension, _ in sample.members:
        stem, _, last = extension.rpartition(".")
        by_stem.setdefault(stem, set()).add(_COMPONENT_OF.get(last, ""))
    needed = {"jpg", "cls"}
    missing = needed - by_stem.pop("", set())
    stems = {
        stem
        for stem, components in by_stem.items()
        if (components & missing if missing else components >= needed)
    }
    paths = [m.path for extension, m in sample.members if extension.rpartition(".")[0] in stems]
    return (paths[0], len(paths)) if paths else None


def _wnid(text: bytes) -> str | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    wnid = document.get("wnid") if isinstance(document, dict) else None
    return wnid if isinstance(wnid, str) and wnid and wnid.isprintable() else None


def why_not_alike(data: bytes) -> str | None:
    """Return None for an image that `check_image` would keep if it decodes, else the fault.

    The judgement is that of `kept_data_ends`, and so are the words for a JPEG that can be opened.
    """
    if not data.startswith(SOI):
        return "not a JPEG"
    try:
        with opened_image(data) as image:
            kept_data_ends(data, image)
    except NotPlain as reason:
        return str(reason)
    except UnusableImage as error:
        # One name for each kind where possible: an error's text may have sizes and bytes in it.
        return why_not_plain(data) or str(error)
    return None
