"""What a shard set says of itself, as far as its manifest can be read.

A manifest with a fault is a problem, not the end of the check: every entry of it that makes sense
is still held against the files. Without any that does, the names of the tars must do.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from accelssl.errors import UserError
from accelssl.shards.manifest import MANIFEST_NAME, SHARD_NAME, Manifest, read_manifest
from accelssl.shards.shard_index import COMPONENTS
from accelssl.shards.storage.storage import Storage
from accelssl.shards.verify.findings import MANIFEST, Findings
from accelssl.shards.verify.manifest_text import check_manifest, document_of, fault_of

_OWN_TAR = re.compile(r"([a-z0-9_]+)-[0-9]{6,}\.tar")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNKNOWN_SPLIT: Final = "unknown"


@dataclass(frozen=True)
class ShardClaim:
    """One shard; None is what the manifest does not tell."""

    split: str
    name: str
    samples: int | None
    tar_bytes: int | None
    tar_sha256: str | None
    idx_bytes: int | None
    idx_sha256: str | None


@dataclass(frozen=True)
class Claims:
    """The whole set. `is_adopted`: others wrote the tars, so names and order are free.

    `is_shuffled`: it says that its order is a shuffle. `written` and `quarantined` count by split.
    """

    classes: tuple[str, ...] | None
    components: tuple[str, ...]
    is_adopted: bool
    is_shuffled: bool
    written: Mapping[str, int]
    quarantined: Mapping[str, int]
    shards: tuple[ShardClaim, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    @property
    def samples(self) -> int:
        """In all shards that tell."""
        return sum(shard.samples or 0 for shard in self.shards)


def read_claims(storage: Storage, findings: Findings) -> Claims:
    """What the manifest claims, with every fault in it noted.

    Raises UserError where there is no manifest: that is not a shard set.
    """
    try:
        manifest, digest = read_manifest(storage)
    except UserError as error:
        if not _has_manifest(storage):
            raise
        claims = _salvaged(storage, error.what, findings)
    except RecursionError:  # Python's parser goes only so deep
        claims = _salvaged(storage, "It is nested too deeply to be a manifest.", findings)
    else:
        check_manifest(storage, manifest, digest, findings)
        claims = _of_manifest(manifest)
    return _checked(claims, findings)


def _has_manifest(storage: Storage) -> bool:
    try:
        return MANIFEST_NAME in storage.names()
    except OSError:
        return False


def _of_manifest(manifest: Manifest) -> Claims:
    return Claims(
        classes=manifest.classes,
        components=manifest.components,
        is_adopted=manifest.seed is None,
        is_shuffled=manifest.seed is not None,
        written={name: split.written for name, split in manifest.splits.items()},
        quarantined={name: split.quarantined for name, split in manifest.splits.items()},
        shards=tuple(
            ShardClaim(name, **vars(shard))
            for name, split in manifest.splits.items()
            for shard in split.shards
        ),
    )


def _checked(claims: Claims, findings: Findings) -> Claims:
    """Without the shards that are named twice; they would be taken for duplicates of images."""
    first: dict[str, ShardClaim] = {}
    for shard in claims.shards:
        if shard.name in first:
            what = f"it is in {first[shard.name].split} and again in {shard.split}"
            findings.wrong(MANIFEST, "a shard is named twice", shard.name, what)
        first.setdefault(shard.name, shard)
        if shard.samples == 0:
            findings.wrong(MANIFEST, "a shard is empty", shard.name, "it has no samples")
    for name, count in Counter(claims.classes).items():
        if count > 1:
            findings.wrong(MANIFEST, "a class is named twice", name, f"it has {count} labels")
    return replace(claims, shards=tuple(first.values()))


def _salvaged(storage: Storage, why: str, findings: Findings) -> Claims:
    findings.wrong(MANIFEST, fault_of(storage), storage.path_of(MANIFEST_NAME), why)
    document = document_of(storage)
    classes = document.get("classes")
    components = document.get("components")
    seed = document.get("seed", 0)
    shards: list[ShardClaim] = []
    counts: dict[str, dict[str, int]] = {"written": {}, "quarantined": {}}
    splits = document.get("splits")
    for split, entry in splits.items() if isinstance(splits, dict) else ():
        entries = entry.get("shards") if isinstance(entry, dict) else None
        for number, shard in enumerate(entries if isinstance(entries, list) else ()):
            claim = _shard_claim(split, number, shard, findings)
            shards += [claim] if claim else []
        for key, by_split in counts.items():
            if isinstance(entry, dict) and _is_count(entry.get(key)):
                by_split[split] = entry[key]
    is_list = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    return Claims(
        classes=tuple(classes or ()) if is_list and classes else None,
        components=COMPONENTS[:2] if components == list(COMPONENTS[:2]) else COMPONENTS,
        is_adopted=seed is None,
        is_shuffled=_is_count(document.get("seed")),
        **counts,
        shards=tuple(shards) or tuple(_named_claim(name) for name in _tars(storage)),
    )


def _shard_claim(split: str, number: int, entry: object, findings: Findings) -> ShardClaim | None:
    """What makes sense in an entry; nothing does without a name that is one of a file."""
    fields = entry if isinstance(entry, dict) else {}
    accepts: dict[str, Callable[[object], bool]] = {
        "name": lambda value: _matches(SHARD_NAME, value),
        "samples": _is_count,
        "tar_bytes": _is_count,
        "tar_sha256": lambda value: _matches(_SHA256, value),
        "idx_bytes": _is_count,
        "idx_sha256": lambda value: _matches(_SHA256, value),
    }
    sound = {key: fields.get(key) for key, accept in accepts.items() if accept(fields.get(key))}
    where = str(sound.get("name", f"shard {number} of {split}"))
    for key in accepts:
        if key not in sound:
            what = f"its {key} is {fields.get(key)!r}"[:200]
            findings.wrong(MANIFEST, "an entry is damaged", where, what)
    if "name" not in sound:
        return None
    rest: dict[str, Any] = {key: sound.get(key) for key in accepts if key != "name"}
    return ShardClaim(split, where, **rest)


def _tars(storage: Storage) -> list[str]:
    return [name for name in storage.names() if name.endswith(".tar")]


def _named_claim(tar: str) -> ShardClaim:
    own = _OWN_TAR.fullmatch(tar)
    split = own[1] if own else _UNKNOWN_SPLIT
    return ShardClaim(split, tar.removesuffix(".tar"), None, None, None, None, None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
