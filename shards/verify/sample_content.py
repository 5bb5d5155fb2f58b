"""Checks of the content of a shard's samples: labels, JSON and images."""

import hashlib
import json
from collections.abc import Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from accelssl.shards.images.image_check import UnusableImage, check_image
from accelssl.shards.shard_index import Extent
from accelssl.shards.verify.findings import IMAGES, LABELS, Findings
from accelssl.shards.verify.shard_layout import FoundSample

NO_LABEL = -1
_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_LONGEST_LABEL_BYTES = 32
_LONGEST_JSON_BYTES = 1 << 20
# More than any picture of at most MAX_PIXELS takes; a damaged size must not fill the memory.
_LARGEST_IMAGE_BYTES = 1 << 28
_JPEG_BEGIN = b"\xff\xd8\xff"

Digests = npt.NDArray[np.uint64]


class Content(NamedTuple):
    """Facts about N samples, 54 bytes and the key for each.

    `label_N` is NO_LABEL where there is none in range. The digests are [N, 2]; that of a name, of
    class and original name, and that of an image, of its bytes, are zeros where there is none.
    """

    label_N: npt.NDArray[np.int32]
    key_N2: Digests
    name_N2: Digests
    image_N2: Digests
    keys: bytes
    """One a line, none after the last."""
    decoded: int


class ContentReader:
    """Reader of the samples of one shard, which collects the facts that `content` returns."""

    def __init__(
        self,
        tar: str,
        file: BinaryIO,
        classes: tuple[str, ...] | None,
        findings: Findings,
        *,
        is_adopted: bool,
    ) -> None:
        self._tar, self._file = tar, file
        self._classes = classes
        self._label_of = {name: label for label, name in enumerate(classes or ())}
        self._is_adopted = is_adopted
        self._findings = findings
        self._labels: list[int] = []
        self._keys: list[str] = []
        self._digests: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        self._decoded = 0

    def take(self, sample: FoundSample, is_to_decode: bool) -> None:
        """Check a sample. Decode its image, or only check that it begins as a JPEG."""
        where = f"{self._tar}: key {sample.key}"
        extents = sample.extents
        label = self._label(where, extents)
        name = self._check_json(where, extents, label)
        image = self._check_image(where, extents, is_to_decode)
        self._labels.append(label)
        self._keys.append(sample.key.replace("\n", "\\n"))
        key = sample.key.encode(errors="surrogateescape")
        for digests, data in zip(self._digests, (key, name, image), strict=True):
            digests.append(_digest(data))

    def content(self) -> Content:
        keys, names, images = map(_as_array, self._digests)
        return Content(
            label_N=np.array(self._labels, np.int32),
            key_N2=keys,
            name_N2=names,
            image_N2=images,
            keys="\n".join(self._keys).encode(errors="backslashreplace"),
            decoded=self._decoded,
        )

    def _label(self, where: str, extents: Mapping[str, Extent]) -> int:
        text = self._read(extents.get("cls"), _LONGEST_LABEL_BYTES)
        if text is None:
            self._findings.wrong(LABELS, "no label", where, "it has no label that can be read")
            return NO_LABEL
        # isdigit() of bytes is ASCII alone: int() would also take signs, blanks and underscores.
        if not text.isdigit():
            self._findings.wrong(LABELS, "a label is no number", where, f"its label is {text!r}")
            return NO_LABEL
        label = int(text)
        if not self._is_adopted and text != b"%d" % label:
            what = f"its label is {text!r}, which accelssl writes as {label}"
            self._findings.wrong(LABELS, "a label has zeros before it", where, what)
        most = np.iinfo(np.int32).max if self._classes is None else len(self._classes) - 1
        if label > most:
            what = f"its label is {label}, not 0 to {most}"
            self._findings.wrong(LABELS, "a label is out of range", where, what)
            return NO_LABEL
        return label

    def _check_json(self, where: str, extents: Mapping[str, Extent], label: int) -> bytes | None:
        """Check the JSON; return class and original name in one if the JSON has both."""
        if "json" not in extents:
            return None
        text = self._read(extents["json"], _LONGEST_JSON_BYTES)
        about = _parse_about(text)
        wnid, name = about.wnid, about.name
        if self._is_adopted:
            self._check_wnid(where, label, wnid if wnid in self._label_of else None)
        elif wnid is None or name is None:
            what = f"its JSON is {(text or b'')[:80]!r}, without wnid and name"
            self._findings.wrong(LABELS, "the JSON is damaged", where, what)
        else:
            self._check_wnid(where, label, wnid)
            if about.others:
                what = f"it also has {', '.join(map(repr, about.others))}"[:200]
                self._findings.note(LABELS, "the JSON has more than wnid and name", where, what)
        if wnid is None or name is None:
            return None
        return f"{wnid}\0{name}".encode(errors="surrogatepass")

    def _check_wnid(self, where: str, label: int, wnid: str | None) -> None:
        if wnid is None or self._classes is None:
            return
        expected = self._label_of.get(wnid)
        if expected is None:
            what = f"its JSON says {wnid!r}, which is none of the classes"
            self._findings.wrong(LABELS, "label and JSON disagree", where, what)
        elif label not in (expected, NO_LABEL):
            what = f"its label is {label}, but its JSON says {wnid}, which is {expected}"
            self._findings.wrong(LABELS, "label and JSON disagree", where, what)

    def _check_image(
        self, where: str, extents: Mapping[str, Extent], is_to_decode: bool
    ) -> bytes | None:
        image = self._read(extents.get("jpg"), _LARGEST_IMAGE_BYTES)
        if image is None:
            self._findings.wrong(IMAGES, "no image", where, "it has no image that can be read")
        elif is_to_decode:
            self._decoded += 1
            try:
                reason = check_image(image).transcoded_because
            except UnusableImage as error:
                self._findings.wrong(IMAGES, "does not decode", where, str(error))
            else:
                if reason is not None:
                    self._findings.wrong(IMAGES, "not a plain JPEG", where, reason)
        elif not image.startswith(_JPEG_BEGIN):
            what = f"it begins with {image[:8].hex()}" if image else "it is empty"
            self._findings.wrong(IMAGES, "not a plain JPEG", where, what)
        return image

    def _read(self, extent: Extent | None, most_bytes: int) -> bytes | None:
        if extent is None or extent.size_bytes > most_bytes:
            return None
        self._file.seek(extent.offset)
        data = self._file.read(extent.size_bytes)
        return data if len(data) == extent.size_bytes else None


class _About(NamedTuple):
    """The JSON of a sample; `others` are the keys that accelssl does not write."""

    wnid: str | None = None
    name: str | None = None
    others: tuple[str, ...] = ()


def _parse_about(text: bytes | None) -> _About:
    try:
        about = json.loads(text or b"")
    except (ValueError, RecursionError):
        return _About()
    if not isinstance(about, dict):
        return _About()
    values = (about.get(key) for key in ("wnid", "name"))
    wnid, name = (value if isinstance(value, str) else None for value in values)
    return _About(wnid, name, tuple(sorted(about.keys() - {"wnid", "name"})))


def _digest(data: bytes | None) -> bytes:
    # A part of a sha256 is as good as any hash of that length; processors compute it fastest.
    return _NO_DIGEST if data is None else hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def _as_array(digests: list[bytes]) -> Digests:
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
