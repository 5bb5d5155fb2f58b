"""Checks of a manifest, and the expected shard set that the other checks compare with the files.

A fault in the manifest does not end the verification: every valid entry is still compared with the
files. Without a valid entry, the expected set is made of the names of the tars.
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
class ExpectedShard:
    """One shard by its manifest. A field is None where the manifest has no valid value."""

    split: str
    name: str
    samples: int | None
    tar_bytes: int | None
    tar_sha256: str | None
    idx_bytes: int | None
    idx_sha256: str | None


@dataclass(frozen=True)
class ExpectedSet:
    """A shard set by its manifest.

    `is_adopted`: others wrote the tars, so names and order are free. `is_shuffled`: the manifest
    has the seed of a shuffle. `written` and `quarantined` count samples by split.
    """

    classes: tuple[str, ...] | None
    components: tuple[str, ...]
    is_adopted: bool
    is_shuffled: bool
    written: Mapping[str, int]
    quarantined: Mapping[str, int]
    shards: tuple[ExpectedShard, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    @property
    def samples(self) -> int:
        """The number of samples in all shards with a known number."""
        return sum(shard.samples or 0 for shard in self.shards)


def read_expected(storage: Storage, findings: Findings) -> ExpectedSet:
    """Return the set that the manifest describes, and add every fault of it to `findings`.

    Raises UserError where there is no manifest: the place is no shard set.
    """
    try:
        manifest, digest = read_manifest(storage)
    except UserError as error:
        if not _has_manifest(storage):
            raise
        expected = _salvaged(storage, error.what, findings)
    except RecursionError:  # Python's parser goes only so deep
        expected = _salvaged(storage, "It is nested too deeply to be a manifest.", findings)
    else:
        check_manifest(storage, manifest, digest, findings)
        expected = _of_manifest(manifest)
    return _checked(expected, findings)


def _has_manifest(storage: Storage) -> bool:
    try:
        return MANIFEST_NAME in storage.names()
    except OSError:
        return False


def _of_manifest(manifest: Manifest) -> ExpectedSet:
    return ExpectedSet(
        classes=manifest.classes,
        components=manifest.components,
        is_adopted=manifest.seed is None,
        is_shuffled=manifest.seed is not None,
        written={name: split.written for name, split in manifest.splits.items()},
        quarantined={name: split.quarantined for name, split in manifest.splits.items()},
        shards=tuple(
            ExpectedShard(name, **vars(shard))
            for name, split in manifest.splits.items()
            for shard in split.shards
        ),
    )


def _checked(expected: ExpectedSet, findings: Findings) -> ExpectedSet:
    """Find doubled names and empty shards; return the set with each shard once."""
    # A shard that is named twice would count as duplicates of its images.
    first: dict[str, ExpectedShard] = {}
    for shard in expected.shards:
        if shard.name in first:
            what = f"it is in {first[shard.name].split} and again in {shard.split}"
            findings.wrong(MANIFEST, "a shard is named twice", shard.name, what)
        first.setdefault(shard.name, shard)
        if shard.samples == 0:
            findings.wrong(MANIFEST, "a shard is empty", shard.name, "it has no samples")
    for name, count in Counter(expected.classes).items():
        if count > 1:
            findings.wrong(MANIFEST, "a class is named twice", name, f"it has {count} labels")
    return replace(expected, shards=tuple(first.values()))


def _salvaged(storage: Storage, why: str, findings: Findings) -> ExpectedSet:
    findings.wrong(MANIFEST, fault_of(storage), storage.path_of(MANIFEST_NAME), why)
    document = document_of(storage)
    classes = document.get("classes")
    components = document.get("components")
    seed = document.get("seed", 0)
    shards: list[ExpectedShard] = []
    counts: dict[str, dict[str, int]] = {"written": {}, "quarantined": {}}
    splits = document.get("splits")
    for split, entry in splits.items() if isinstance(splits, dict) else ():
        entries = entry.get("shards") if isinstance(entry, dict) else None
        for number, shard in enumerate(entries if isinstance(entries, list) else ()):
            found = _shard_of_entry(split, number, shard, findings)
            shards += [found] if found else []
        for key, by_split in counts.items():
            if isinstance(entry, dict) and _is_count(entry.get(key)):
                by_split[split] = entry[key]
    is_list = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    return ExpectedSet(
        classes=tuple(classes or ()) if is_list and classes else None,
        components=COMPONENTS[:2] if components == list(COMPONENTS[:2]) else COMPONENTS,
        is_adopted=seed is None,
        is_shuffled=_is_count(document.get("seed")),
        **counts,
        shards=tuple(shards) or tuple(_shard_of_name(name) for name in _tars(storage)),
    )


def _shard_of_entry(
    split: str, number: int, entry: object, findings: Findings
) -> ExpectedShard | None:
    """Return the valid fields of an entry, or None without a valid name."""
    fields = entry if isinstance(entry, dict) else {}
    accepts: dict[str, Callable[[object], bool]] = {
        "name": lambda value: _matches(SHARD_NAME, value),
        "samples": _is_count,
        "tar_bytes": _is_count,
        "tar_sha256": lambda value: _matches(_SHA256, value),
        "idx_bytes": _is_count,
        "idx_sha256": lambda value: _matches(_SHA256, value),
    }
    valid = {key: fields.get(key) for key, accept in accepts.items() if accept(fields.get(key))}
    where = str(valid.get("name", f"shard {number} of {split}"))
    for key in accepts:
        if key not in valid:
            what = f"its {key} is {fields.get(key)!r}"[:200]
            findings.wrong(MANIFEST, "an entry is damaged", where, what)
    if "name" not in valid:
        return None
    rest: dict[str, Any] = {key: valid.get(key) for key in accepts if key != "name"}
    return ExpectedShard(split, where, **rest)


def _tars(storage: Storage) -> list[str]:
    return [name for name in storage.names() if name.endswith(".tar")]


def _shard_of_name(tar: str) -> ExpectedShard:
    own = _OWN_TAR.fullmatch(tar)
    split = own[1] if own else _UNKNOWN_SPLIT
    return ExpectedShard(split, tar.removesuffix(".tar"), None, None, None, None, None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
