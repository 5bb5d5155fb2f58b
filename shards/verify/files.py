"""Check of the names and sizes of a set's files against its manifest."""

from collections import Counter
from collections.abc import Mapping

from accelssl.shards.manifest import MANIFEST_NAME, UNFINISHED_NAME
from accelssl.shards.storage.storage import Storage
from accelssl.shards.verify.findings import FILES, Findings
from accelssl.shards.verify.manifest_checks import ExpectedSet
from accelssl.shards.write.set_folder import QUARANTINE_NAME

_SHARD_SUFFIXES = ("tar", "idx")


def check_files(
    storage: Storage, expected: ExpectedSet, sizes_bytes: Mapping[str, int], findings: Findings
) -> None:
    """Find files that are missing, have another size, or are not in the manifest."""
    named = {MANIFEST_NAME, QUARANTINE_NAME}
    for shard in expected.shards:
        for suffix in _SHARD_SUFFIXES:
            name = f"{shard.name}.{suffix}"
            named.add(name)
            expected_bytes = shard.tar_bytes if suffix == "tar" else shard.idx_bytes
            actual = sizes_bytes.get(name)
            kind = f"a{'n' * (suffix == 'idx')} {suffix}"
            if actual is None:
                findings.wrong(FILES, f"{kind} is missing", name, "it is in the manifest")
            elif expected_bytes is not None and actual != expected_bytes:
                what = f"it has {actual} bytes, not the {expected_bytes} in the manifest"
                findings.wrong(FILES, f"{kind} has another size", name, what)
    for name in storage.names():
        if name not in named:
            _judge_other(name, expected, findings)
    _check_quarantine(storage, expected, sizes_bytes, findings)


def _judge_other(name: str, expected: ExpectedSet, findings: Findings) -> None:
    is_shard = name.endswith(tuple(f".{suffix}" for suffix in _SHARD_SUFFIXES))
    if name == UNFINISHED_NAME:
        what = "the job was stopped after it wrote the manifest; the set is complete"
        findings.note(FILES, "another file", name, what)
    elif is_shard and not expected.is_adopted:
        what = "it is not in the manifest, but readers that go by names take it"
        findings.wrong(FILES, "a stray shard", name, what)
    else:
        findings.note(FILES, "another file", name, "it is not in the manifest")


def _check_quarantine(
    storage: Storage, expected: ExpectedSet, sizes_bytes: Mapping[str, int], findings: Findings
) -> None:
    if QUARANTINE_NAME not in sizes_bytes:
        if any(expected.quarantined.values()):
            what = "the list of images that did not decode is missing"
            findings.note(FILES, "the quarantine list", QUARANTINE_NAME, what)
        return
    try:
        rows = storage.read(QUARANTINE_NAME).split(b"\n")[1:]
    except OSError as error:
        findings.wrong(FILES, "the quarantine list", QUARANTINE_NAME, _unreadable(error))
        return
    listed = Counter(row.split(b"\t")[0].decode(errors="replace") for row in rows if row)
    # A split of which nothing is left is none, so accelssl lists no image of another.
    no_splits = dict.fromkeys(listed.keys() - expected.splits, 0)
    for split, count in sorted({**no_splits, **expected.quarantined}.items()):
        if listed[split] != count:
            what = f"it lists {listed[split]} images of {split}, the manifest counts {count}"
            findings.wrong(FILES, "the quarantine list", QUARANTINE_NAME, what)


def _unreadable(error: OSError) -> str:
    return f"it cannot be read: {error.strerror}"
