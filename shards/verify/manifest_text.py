"""Faults in the text of a manifest and in its counts."""

import json
from collections.abc import Iterator
from typing import Any

from accelssl.shards.manifest import FORMAT, FORMAT_VERSION, MANIFEST_NAME, Manifest
from accelssl.shards.storage.storage import Storage
from accelssl.shards.verify.findings import MANIFEST, Findings

_DAMAGED = "the manifest is damaged"
_LONGEST_SHOWN = 200


def check_manifest(storage: Storage, manifest: Manifest, digest: str, findings: Findings) -> None:
    """Find faults in a manifest that readers accept; `digest` is the sha256 of the file."""
    path = storage.path_of(MANIFEST_NAME)
    for name, split in manifest.splits.items():
        transcoded = sum(split.transcoded.values())
        if transcoded > split.written:
            what = f"{transcoded} of its samples are transcoded, of {split.written} written"
            findings.wrong(MANIFEST, "its counts do not add up", name, what)
    if digest != manifest.digest:
        written = json.loads(manifest.to_bytes())
        faults = list(_differences(document_of(storage), written, ""))
        # The checksum differs wherever something else does.
        for what in [f for f in faults if not f.startswith("checksum ")] or ["it is laid out anew"]:
            findings.wrong(MANIFEST, "it is not what accelssl writes", path, what[:_LONGEST_SHOWN])


def fault_of(storage: Storage) -> str:
    """Name the fault of a manifest that readers refuse."""
    try:
        storage.read(MANIFEST_NAME)
    except OSError:
        return "the manifest cannot be read"
    document = document_of(storage)
    version = document.get("version")
    is_number = isinstance(version, int | float) and not isinstance(version, bool)
    if document.get("format") == FORMAT and is_number and version != FORMAT_VERSION:
        return "the manifest is of another version"
    return _DAMAGED


def document_of(storage: Storage) -> dict[str, Any]:
    """Return the file's JSON object, or an empty one."""
    try:
        document = json.loads(storage.read(MANIFEST_NAME))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _differences(there: object, written: object, at: str) -> Iterator[str]:
    """Yield differences from the document that accelssl writes, such as "a.b is 2.0, not 2"."""
    if isinstance(there, dict) and isinstance(written, dict):
        for key, value in there.items():
            inner = f"{at}.{key}" if at else key
            if key in written:
                yield from _differences(value, written[key], inner)
            else:
                yield f"{inner} means nothing"
    elif isinstance(there, list) and isinstance(written, list) and len(there) == len(written):
        for n, pair in enumerate(zip(there, written, strict=True)):
            yield from _differences(*pair, f"{at}[{n}]")
    elif (type(there), there) != (type(written), written):
        yield f"{at} is {there!r}, not {written!r}"
