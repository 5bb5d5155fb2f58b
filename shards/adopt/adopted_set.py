"""Writing the indexes of checked tars, and the manifest last."""

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from itertools import count
from pathlib import Path

from accelssl.shards.adopt.adopt_tar import CheckedTar, TarToCheck
from accelssl.shards.manifest import MANIFEST_NAME, Manifest, ShardEntry, SplitEntry
from accelssl.shards.shard_index import COMPONENTS
from accelssl.shards.storage.folder import Folder

_OPTIONS = {"adopted": "webdataset tars"}
_SPLIT_OF_WORD = {"val": "val", "valid": "val", "validation": "val", "test": "test"}
_SPLITS = ("train", "val", "test")
_JSON_OF_SAMPLE = re.compile(rb" json \d+ \d+ [^ \n]+$", re.MULTILINE)


def split_of(name: str) -> str:
    """Return the split of a tar by its name: "train", "val" or "test"."""
    words = re.split("[^a-z]+", name.lower())
    return next((_SPLIT_OF_WORD[word] for word in words if word in _SPLIT_OF_WORD), "train")


def write_adopted_set(
    root: Path, tars: Mapping[Path, CheckedTar], classes: tuple[str, ...]
) -> tuple[Manifest, list[str]]:
    """Write the indexes from their parts, then the manifest; see `check_tar`.

    Gives back the manifest, and the names under which other indexes that were there are kept.
    Interrupted at any moment it leaves right indexes, or those that were there, and no manifest.
    Raises OSError when something cannot be written.
    """
    folder = Folder(root)
    has_json = all(tar.has_json for tar in tars.values())
    shards: dict[str, list[ShardEntry]] = {split: [] for split in _SPLITS}
    kept = []
    for path, tar in tars.items():
        index = TarToCheck(path, None).index_part.read_bytes()
        if tar.has_json and not has_json:
            index = _JSON_OF_SAMPLE.sub(b"", index)
        stem = path.name.removesuffix(".tar")
        kept += _put(folder, f"{stem}.idx", index)
        shards[split_of(stem)].append(
            ShardEntry(
                name=stem,
                samples=tar.samples,
                tar_bytes=tar.size_bytes,
                tar_sha256=tar.sha256,
                idx_bytes=len(index),
                idx_sha256=sha256(index).hexdigest(),
            )
        )
    manifest = Manifest(
        classes=classes,
        splits={split: _entry(entries) for split, entries in shards.items() if entries},
        components=COMPONENTS if has_json else COMPONENTS[:2],
        seed=None,
        options=_OPTIONS,
        written_by={"accelssl": version("accelssl")},
    )
    folder.write(MANIFEST_NAME, manifest.to_bytes())
    return manifest, kept


def _entry(shards: list[ShardEntry]) -> SplitEntry:
    samples = sum(shard.samples for shard in shards)
    return SplitEntry(written=samples, quarantined=0, transcoded={}, shards=tuple(shards))


def _put(folder: Folder, name: str, index: bytes) -> list[str]:
    """Write an index; an existing one with other content moves to the first free name."""
    names = set(folder.names())
    if name not in names:
        folder.write(name, index)
        return []
    theirs = folder.read(name)
    if theirs == index:
        return []
    free = (f"{name}.orig{n or ''}" for n in count() if f"{name}.orig{n or ''}" not in names)
    kept = next(free)
    folder.write(kept, theirs)
    folder.write(name, index)
    return [kept]
