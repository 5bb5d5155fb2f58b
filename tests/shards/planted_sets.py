"""Shard sets written by tarfile, to plant faults in, and what the checker says of them."""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from accelssl.shards.manifest import Manifest, ShardEntry, SplitEntry
from accelssl.shards.verify.verification import Verification
from accelssl.shards.verify.verify import verify_shards

CLASSES = ("n01", "n02", "n03", "n04")
SHARDS = {"train": (20, 20, 8), "val": (8,)}


# A member of a tar: its name and its bytes.
Members = list[tuple[str, bytes]]


@functools.cache
def encoded(seed: int, form: str = "JPEG") -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((40 + seed % 13, 36), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def sample(key: str, image: bytes, label: int, name: str, wnid: str | None = None) -> Members:
    about = {"wnid": wnid or CLASSES[label], "name": name}
    return [
        (f"{key}.jpg", image),
        (f"{key}.cls", str(label).encode()),
        (f"{key}.json", json.dumps(about).encode()),
    ]


def members_of_set(seed: int = 0) -> dict[str, Members]:
    """The content of a fair set, by shard."""
    content = {}
    for split, counts in SHARDS.items():
        order = np.random.default_rng(seed).permutation(sum(counts))
        key = 0
        for number, count in enumerate(counts):
            members: Members = []
            for i in order[key : key + count].tolist():
                image = encoded(i + 1000 * (split == "val"))
                members += sample(f"{key:08d}", image, i % len(CLASSES), f"{split}_{i}.JPEG")
                key += 1
            content[f"{split}-{number:06d}"] = members
    return content


def write_tar(path: Path, members: Members, form: int = tarfile.USTAR_FORMAT) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))


def write_index(tar: Path, extensions: tuple[str, ...] = ("jpg", "cls", "json")) -> None:
    """By what tarfile finds: a line for each run of members with these extensions."""
    with tarfile.open(tar) as archive:
        members = [m for m in archive if m.name.endswith(extensions)]
    lines = [f"v1.2 {len(members) // len(extensions)}"]
    for at in range(0, len(members), len(extensions)):
        groups = zip(extensions, members[at : at + len(extensions)], strict=True)
        lines.append(" ".join(f"{ext} {m.offset_data} {m.size} {m.name}" for ext, m in groups))
    tar.with_suffix(".idx").write_text("\n".join(lines) + "\n")


def seal(out: Path, **changes: Any) -> None:
    """Write the manifest that fits the tars and indexes of a folder, whatever is in them."""

    def entry(tar: Path) -> ShardEntry:
        data, index = tar.read_bytes(), tar.with_suffix(".idx").read_bytes()
        return ShardEntry(
            name=tar.stem,
            samples=int(index.split()[1]),
            tar_bytes=len(data),
            tar_sha256=hashlib.sha256(data).hexdigest(),
            idx_bytes=len(index),
            idx_sha256=hashlib.sha256(index).hexdigest(),
        )

    splits = {}
    for split, tars in itertools.groupby(sorted(out.glob("*.tar")), lambda t: t.stem.split("-")[0]):
        shards = tuple(map(entry, tars))
        splits[split] = SplitEntry(sum(shard.samples for shard in shards), 0, {}, shards)
    manifest = Manifest(CLASSES, splits, ("jpg", "cls", "json"), 0, {}, {"accelssl": "test"})
    manifest = dataclasses.replace(manifest, **changes)
    (out / "manifest.json").write_bytes(manifest.to_bytes())


def write_set(out: Path, content: Mapping[str, Members], **changes: Any) -> Path:
    """A set whose manifest and indexes fit its tars, so that only deeper checks see a fault."""
    out.mkdir(exist_ok=True)
    for name, members in content.items():
        write_tar(out / f"{name}.tar", members)
        write_index(out / f"{name}.tar")
    seal(out, **changes)
    return out


def verified(out: Path | str, **options: Any) -> Verification:
    return verify_shards(out, **{"workers": 1, **options})


def found(report: Verification) -> set[tuple[str, str, str]]:
    return {(f.kind.check, f.kind.name, f.where) for f in report.problems}


def noted(report: Verification) -> set[tuple[str, str, str]]:
    return {(f.kind.check, f.kind.name, f.where) for f in report.notes}


def figure(report: Verification, name: str) -> str:
    return next(check.figure for check in report.checks if check.name == name)


def outcomes(report: Verification) -> dict[str, str]:
    return {check.name: check.outcome for check in report.checks}


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x55]))


def replace_member(members: Members, name: str, data: bytes) -> None:
    (at,) = [n for n, member in enumerate(members) if member[0] == name]
    members[at] = (name, data)


def write_document(out: Path, document: Any) -> None:
    """Write a manifest of any content, with the checksum that it must have."""
    unsigned = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(unsigned, indent=1, sort_keys=True) + "\n"
    signed = unsigned | {"checksum": hashlib.sha256(text.encode()).hexdigest()}
    (out / "manifest.json").write_text(json.dumps(signed, indent=1, sort_keys=True) + "\n")


def edit_document(out: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads((out / "manifest.json").read_bytes())
    edit(document)
    write_document(out, document)
