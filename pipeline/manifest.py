"""manifest.json: what a shard set holds, and the set's identity.

It is the last file that a sharding job writes, so a folder without one is not a set. It names every
tar and index with size and sha256; the sha256 of its own bytes therefore stands for the whole set.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from accelssl.errors import UserError

MANIFEST_NAME: Final = "manifest.json"
# Present from the first to the last moment of a sharding job: what marks its leftovers as ours.
UNFINISHED_NAME: Final = "unfinished.json"
FORMAT: Final = "accelssl-shards"
FORMAT_VERSION: Final = 1
_SHARD_NAME = re.compile(r"[a-z0-9_]+-[0-9]{6,}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RESHARD = "Write the set again with `accelssl shard-imagenet`, into an empty folder."


@dataclass(frozen=True)
class ShardEntry:
    """One tar and its index: `<name>.tar` and `<name>.idx`."""

    name: str
    samples: int
    tar_bytes: int
    tar_sha256: str
    idx_bytes: int
    idx_sha256: str


@dataclass(frozen=True)
class SplitEntry:
    """A split's shards in order. `transcoded` counts, by reason, the written samples that are not
    their source's bytes; `quarantined` counts the images that did not decode."""

    written: int
    quarantined: int
    transcoded: Mapping[str, int]
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """A shard set's content. A label is a position in `classes`."""

    classes: tuple[str, ...]
    splits: Mapping[str, SplitEntry]
    seed: int
    options: Mapping[str, int]
    written_by: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """The file's content: the same for the same content of the set."""
        document = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def read_manifest(root: Path) -> tuple[Manifest, str]:
    """The manifest of the shard set in a folder, and its digest: the sha256 of the file, in hex.

    Raises UserError for a missing, unreadable or foreign manifest and for another format version.
    """
    path = root / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _not_a_set(root) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions."
        ) from None
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        version = document["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(path, error) from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} is of format version {version!r}; this accelssl reads {FORMAT_VERSION}.",
            "Use the accelssl that wrote it, or write the set again.",
        )
    try:
        return _parse(document), hashlib.sha256(text).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(path, error) from None


def _not_a_set(root: Path) -> UserError:
    if not root.is_dir():
        return UserError(f"{root} is not a folder.", "Name the folder of a shard set.")
    if (root / UNFINISHED_NAME).exists():
        return UserError(
            f"{root} holds shards of a job that did not finish.",
            "Run the same `accelssl shard-imagenet` again.",
        )
    return UserError(
        f"{root} has no {MANIFEST_NAME}: it is not a shard set.",
        "Name a folder that `accelssl shard-imagenet` wrote.",
    )


def _foreign(path: Path, error: Exception) -> UserError:
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
        seed=_whole(document["seed"]),
        options={str(k): _whole(v) for k, v in document["options"].items()},
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
        name=_matching(_SHARD_NAME, entry["name"]),
        samples=_whole(entry["samples"]),
        tar_bytes=_whole(entry["tar_bytes"]),
        tar_sha256=_matching(_SHA256, entry["tar_sha256"]),
        idx_bytes=_whole(entry["idx_bytes"]),
        idx_sha256=_matching(_SHA256, entry["idx_sha256"]),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or value < 0:
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
