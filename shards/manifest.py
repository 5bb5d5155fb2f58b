"""manifest.json: the content and the identity of a shard set.

A sharding job writes the manifest last, so a folder without one is not a set. The manifest names
every tar and index with size and sha256, so its own sha256 stands for the whole set. A checksum of
its own content reveals a changed manifest.
"""

import hashlib
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from accelssl.errors import UserError
from accelssl.shards.shard_index import COMPONENTS
from accelssl.shards.storage.storage import S3_SCHEME, Storage, remedy

MANIFEST_NAME: Final = "manifest.json"
# Present from the first to the last moment of a sharding job: what marks its leftovers as ours.
UNFINISHED_NAME: Final = "unfinished.json"
FORMAT: Final = "accelssl-shards"
FORMAT_VERSION: Final = 2
# Only ASCII letters, digits, "_", "-" and ".": the name cannot lead out of the set's folder.
SHARD_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_AS_WRITTEN = "Restore the file as it was written, or write the set again."
_RESHARD = "Write the set again with `accelssl shard-imagenet`, into an empty folder."


@dataclass(frozen=True)
class ShardEntry:
    """One tar and its index: `<name>.tar` and `<name>.idx`."""

    name: str
    """Matches SHARD_NAME."""
    samples: int
    tar_bytes: int
    tar_sha256: str
    idx_bytes: int
    idx_sha256: str


@dataclass(frozen=True)
class SplitEntry:
    """A split's shards in order.

    `transcoded` counts, by reason, the written samples that are not their source's bytes;
    `quarantined` counts the images that did not decode.
    """

    written: int
    quarantined: int
    transcoded: Mapping[str, int]
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """A shard set's content. A label is a position in `classes`.

    `components` are the members of each sample that the indexes list. `options` and `seed` are what
    the set was made with; `seed` is None for tars that accelssl did not write.
    """

    classes: tuple[str, ...]
    splits: Mapping[str, SplitEntry]
    components: tuple[str, ...]
    seed: int | None
    options: Mapping[str, int | str]
    written_by: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """Return the file's content: the same for the same content of the set."""
        document = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return _as_text(document | {"checksum": _checksum(document)})

    @property
    def digest(self) -> str:
        """The sha256 of the file, in hex: the same digest means the same bytes in every tar."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def read_manifest(storage: Storage) -> tuple[Manifest, str]:
    """Return the manifest of a shard set and its digest: the sha256 of the file, in hex.

    Raises UserError for a missing, unreadable, foreign or changed manifest and for another format
    version.
    """
    path = storage.path_of(MANIFEST_NAME)
    try:
        text = storage.read(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise _not_a_set(storage) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}.", remedy(storage.location)
        ) from None
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        version = document["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _foreign(path, error) from None
    if version != FORMAT_VERSION:
        shown = reprlib.repr(version)  # what is no number may be too deep to write out
        raise UserError(
            f"{path} is of format version {shown}; this accelssl reads {FORMAT_VERSION}.",
            "Use the accelssl that wrote it, or write the set again.",
        )
    try:
        checksum = document.pop("checksum")
        manifest = _parse(document)
        is_unchanged = checksum == _checksum(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _foreign(path, error) from None
    if not is_unchanged:
        raise UserError(f"{path} was changed after it was written.", _AS_WRITTEN)
    return manifest, hashlib.sha256(text).hexdigest()


def _as_text(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _checksum(document: Mapping[str, object]) -> str:
    return hashlib.sha256(_as_text(document)).hexdigest()


def _not_a_set(storage: Storage) -> UserError:
    place = storage.location
    if not storage.exists():
        if place.startswith(S3_SCHEME):  # has no folders, but names that begin alike
            return UserError(f"There is nothing at {place}.", "Name the place of a shard set.")
        return UserError(f"{place} is not a folder.", "Name the folder of a shard set.")
    names = storage.names()
    if UNFINISHED_NAME in names:
        return UserError(
            f"{place} holds shards of a job that did not finish.",
            "Run the same `accelssl shard-imagenet` again.",
        )
    if any(name.endswith(".tar") for name in names):
        return UserError(
            f"{place} has tars but no {MANIFEST_NAME}: it is not a shard set.",
            f"If they are WebDataset tars of labelled JPEGs, run `accelssl index-shards {place}`.",
        )
    return UserError(
        f"{place} has no {MANIFEST_NAME}: it is not a shard set.",
        "Name a folder that `accelssl shard-imagenet` wrote.",
    )


def _foreign(path: str, error: Exception) -> UserError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return UserError(f"{path} is not the manifest of a shard set ({reason}).", _RESHARD)


def _parse(document: dict[str, Any]) -> Manifest:
    splits = {str(name): _split(entry) for name, entry in document["splits"].items()}
    classes = tuple(_text(name) for name in document["classes"])
    if not splits or not classes:
        raise ValueError("it has no splits or no classes")
    return Manifest(
        classes=classes,
        splits=splits,
        components=_components(document["components"]),
        seed=None if document["seed"] is None else _whole(document["seed"]),
        options={str(k): _whole_or_text(v) for k, v in document["options"].items()},
        written_by={str(k): _text(v) for k, v in document["written_by"].items()},
    )


def _split(entry: dict[str, Any]) -> SplitEntry:
    shards = tuple(_shard(shard) for shard in entry["shards"])
    written = _whole(entry["written"])
    if not written or written != sum(shard.samples for shard in shards):
        raise ValueError("its sample counts do not add up")
    return SplitEntry(
        written=written,
        quarantined=_whole(entry["quarantined"]),
        transcoded={str(k): _whole(v) for k, v in entry["transcoded"].items()},
        shards=shards,
    )


def _shard(entry: dict[str, Any]) -> ShardEntry:
    return ShardEntry(
        # The pattern also keeps a manifest from naming files outside its folder.
        name=_matching(SHARD_NAME, entry["name"]),
        samples=_whole(entry["samples"]),
        tar_bytes=_whole(entry["tar_bytes"]),
        tar_sha256=_matching(_SHA256, entry["tar_sha256"]),
        idx_bytes=_whole(entry["idx_bytes"]),
        idx_sha256=_matching(_SHA256, entry["idx_sha256"]),
    )


def _components(value: list[object]) -> tuple[str, ...]:
    components = tuple(_text(name) for name in value)
    # An image and a label always, in the order of the index.
    if components not in (COMPONENTS, COMPONENTS[:2]):
        raise ValueError(f"its components are {components}")
    return components


def _whole_or_text(value: object) -> int | str:
    return value if isinstance(value, str) else _whole(value)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not pattern.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is out of place")
    return str(value)
