"""The checker of shard sets: every planted fault is found, in its place, and nothing else is."""

import dataclasses
import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.errors import UserError
from accelssl.pipeline.adopt import index_shards
from accelssl.pipeline.imagenet import shard_images
from accelssl.pipeline.manifest import Manifest, ShardEntry, SplitEntry
from accelssl.pipeline.sources.ilsvrc2012 import imagenet_classes
from accelssl.pipeline.storage.folder import Folder
from accelssl.pipeline.verify.storage_file import StorageFile
from accelssl.pipeline.verify.verification import Verification
from accelssl.pipeline.verify.verify import verify_shards

CLASSES = ("n01", "n02", "n03", "n04")
SHARDS = {"train": (20, 20, 8), "val": (8,)}
ODD_IMAGES = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "odd_images.tar"

# A member of a tar: its name and its bytes.
Members = list[tuple[str, bytes]]


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


@pytest.fixture
def content() -> dict[str, Members]:
    return members_of_set()


@pytest.fixture
def clean(tmp_path: Path, content: dict[str, Members]) -> Path:
    return write_set(tmp_path / "set", content)


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


def locate(tar: Path, member: str) -> tuple[int, int]:
    """The offset and the size of a member's data."""
    with tarfile.open(tar) as archive:
        info = archive.getmember(member)
        return info.offset_data, info.size


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x55]))


def replace_member(members: Members, name: str, data: bytes) -> None:
    (at,) = [n for n, member in enumerate(members) if member[0] == name]
    members[at] = (name, data)


# Whole sets


def test_a_clean_set_has_no_problem_and_no_note(clean: Path) -> None:
    report = verified(clean)
    assert report.is_right
    assert not report.problems and not report.notes
    assert set(outcomes(report).values()) == {"ok"}
    size_bytes = sum(p.stat().st_size for p in clean.iterdir() if p.suffix in (".tar", ".idx"))
    assert figure(report, "manifest") == "4 classes, train and val, 56 samples"
    assert figure(report, "files") == f"4 tars with index, {size_bytes / 1e6:,.1f} MB"
    assert figure(report, "checksums") == "8 of 8 files compared"
    assert figure(report, "images") == "56 of 56 decoded"
    assert figure(report, "classes") == (
        "4 classes; least / median / most: train 12 / 12 / 12, val 2 / 2 / 2"
    )


def test_what_accelssl_shards_is_right_to_its_own_checker(tmp_path: Path) -> None:
    for label, name in enumerate(CLASSES):
        for split, count in (("train", 9), ("val", 3)):
            folder = tmp_path / "in" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                seed = 100 * label + i + 50 * (split == "val")
                form = ("JPEG", "PNG", "TIFF")[i % 3]
                (folder / f"{i}.{form}").write_bytes(encoded(seed, form))
    (tmp_path / "in" / "train" / "n02" / "broken.jpg").write_bytes(encoded(77)[:300])
    shard_images(tmp_path / "in", tmp_path / "set", samples_per_shard=10, workers=1)
    report = verified(tmp_path / "set", full=True)
    assert not report.problems and not report.notes, str(report)
    assert figure(report, "images") == "48 of 48 decoded"


@pytest.mark.skipif(not ODD_IMAGES.exists(), reason="needs the pictures of ../shared/data")
def test_whatever_picture_was_stored_is_stored_as_it_should_be(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "train" / "only"
    folder.mkdir(parents=True)
    with tarfile.open(ODD_IMAGES) as tar:
        for number, member in enumerate(m for m in tar if m.isfile()):
            data = tar.extractfile(member)
            assert data is not None
            (folder / f"{number}.jpg").write_bytes(data.read())
    shard_images(tmp_path / "in", tmp_path / "set", workers=1)
    report = verified(tmp_path / "set", full=True)
    assert not report.problems, str(report)
    assert outcomes(report)["images"] == "ok"


def test_one_worker_and_two_give_the_same_report(clean: Path) -> None:
    flip(clean / "train-000001.tar", 700)
    flip(clean / "val-000000.idx", 20)
    (clean / "train-000002.tar").unlink()
    one, two = verified(clean, workers=1), verified(clean, workers=2)
    assert one == two
    assert str(one) == str(two)
    assert len(one.problems) > 4


def test_progress_grows_and_ends_at_the_bytes_of_all_shards(clean: Path) -> None:
    total = sum(p.stat().st_size for p in clean.iterdir() if p.suffix in (".tar", ".idx"))
    for workers in (1, 2):
        calls: list[tuple[int, int]] = []
        verified(clean, workers=workers, progress=lambda *call, calls=calls: calls.append(call))
        assert {call[1] for call in calls} == {total}
        assert [call[0] for call in calls] == sorted(call[0] for call in calls)
        assert calls[-1] == (total, total)


def test_progress_ends_at_the_total_though_files_are_missing_or_damaged(clean: Path) -> None:
    (clean / "train-000000.tar").unlink()
    (clean / "train-000001.idx").unlink()
    os.truncate(clean / "train-000002.tar", 4000)
    total = sum(p.stat().st_size for p in clean.iterdir() if p.suffix in (".tar", ".idx"))
    calls: list[tuple[int, int]] = []
    verified(clean, progress=lambda *call: calls.append(call))
    assert calls[-1] == (total, total)


def test_a_set_on_s3_is_checked_like_a_folder(clean: Path, bucket: str) -> None:
    import boto3

    client = boto3.session.Session().client("s3")
    overwrite(clean / "train-000001.tar", 700, b"other bytes")
    for path in clean.iterdir():
        client.upload_file(str(path), bucket, f"set/{path.name}")
    local, remote = verified(clean), verified(f"s3://{bucket}/set")
    assert dataclasses.replace(remote, location=str(clean)) == local
    assert ("checksums", "other bytes than were written", "train-000001.tar") in found(remote)


@pytest.mark.parametrize(
    ("options", "named"), [({"workers": 0}, "workers is 0"), ({"sample": -1}, "sample is -1")]
)
def test_options_out_of_range_are_refused(clean: Path, options: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        verify_shards(clean, **options)


def test_a_place_without_a_manifest_is_no_shard_set(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match=str(place)):
            verified(place)


# Manifest and files


def write_document(out: Path, document: Any) -> None:
    """Write a manifest of any content, with the checksum that it must have."""
    unsigned = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(unsigned, indent=1, sort_keys=True) + "\n"
    signed = unsigned | {"checksum": hashlib.sha256(text.encode()).hexdigest()}
    (out / "manifest.json").write_text(json.dumps(signed, indent=1, sort_keys=True) + "\n")


def edit_manifest(out: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads((out / "manifest.json").read_bytes())
    edit(document)
    (out / "manifest.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def test_a_changed_manifest_is_wrong_and_the_files_are_held_against_the_rest_of_it(
    clean: Path,
) -> None:
    edit_manifest(clean, lambda d: d["splits"]["train"]["shards"][1].update(tar_sha256="f" * 64))
    assert found(verified(clean)) == {
        ("manifest", "the manifest is damaged", str(clean / "manifest.json")),
        ("checksums", "other bytes than were written", "train-000001.tar"),
    }


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("tar_sha256", "zz", "train-000001"),
        ("samples", -3, "train-000001"),
        ("idx_bytes", None, "train-000001"),
        ("tar_bytes", "many", "train-000001"),
        ("name", "../train-000001", "shard 1 of train"),
    ],
)
def test_a_damaged_entry_of_the_manifest_leaves_all_else_to_be_checked(
    clean: Path, content: dict[str, Members], key: str, value: object, where: str
) -> None:
    replace_member(content["val-000000"], "00000003.cls", b"99")
    write_set(clean, content)
    edit_manifest(clean, lambda d: d["splits"]["train"]["shards"][1].update({key: value}))
    report = verified(clean)
    expected = {
        ("manifest", "the manifest is damaged", str(clean / "manifest.json")),
        ("manifest", "an entry is damaged", where),
        ("labels", "a label is out of range", "val-000000.tar: key 00000003"),
    }
    if key == "name":
        expected |= {
            ("files", "a stray shard", f"train-000001.{suffix}") for suffix in ("tar", "idx")
        }
    assert found(report) == expected
    damage = next(f for f in report.problems if f.kind.name == "an entry is damaged")
    assert repr(value) in damage.what
    assert figure(report, "images").endswith("36 decoded" if key == "name" else "56 decoded")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"splits": 3}'])
def test_under_a_garbage_manifest_the_tars_themselves_are_still_checked(
    clean: Path, content: dict[str, Members], text: bytes
) -> None:
    replace_member(content["train-000001"], "00000025.jpg", encoded(5, "PNG"))
    write_set(clean, content)
    (clean / "manifest.json").write_bytes(text)
    report = verified(clean)
    assert found(report) == {
        ("manifest", "the manifest is damaged", str(clean / "manifest.json")),
        ("images", "not a plain JPEG", "train-000001.tar: key 00000025"),
    }
    assert figure(report, "index") == "56 samples found"


def test_a_shard_or_class_that_is_named_twice_is_wrong(clean: Path) -> None:
    document = json.loads((clean / "manifest.json").read_bytes())
    shard = ShardEntry(**document["splits"]["val"]["shards"][0])
    val = SplitEntry(16, 0, {}, (shard, shard))
    splits = {"train": SplitEntry(8, 0, {}, (shard,)), "val": val}
    seal(clean, splits=splits, classes=("n01", "n02", "n03", "n04", "n02"))
    assert {f for f in found(verified(clean)) if f[0] == "manifest"} == {
        ("manifest", "a shard is named twice", "val-000000"),
        ("manifest", "a class is named twice", "n02"),
    }


def test_a_shard_without_samples_is_wrong(clean: Path) -> None:
    # DALI reads an empty tar as one empty sample.
    write_tar(clean / "train-000003.tar", [])
    (clean / "train-000003.idx").write_text("v1.2 0\n")
    seal(clean)
    assert found(verified(clean)) == {("manifest", "a shard is empty", "train-000003")}


def test_missing_files_are_named_and_the_others_are_checked(clean: Path) -> None:
    (clean / "train-000000.tar").unlink()
    (clean / "train-000001.idx").unlink()
    report = verified(clean)
    assert found(report) == {
        ("files", "a tar is missing", "train-000000.tar"),
        ("files", "an idx is missing", "train-000001.idx"),
    }
    assert figure(report, "checksums") == "6 of 8 files compared"
    assert figure(report, "images") == "36 of 36 decoded"


def test_stray_shards_are_wrong_and_other_files_are_noted(clean: Path) -> None:
    for name in ("train-000003.tar", "old.idx", "README.txt"):
        (clean / name).write_bytes(b"x")
    (clean / "folder").mkdir()
    report = verified(clean)
    assert found(report) == {
        ("files", "a stray shard", "train-000003.tar"),
        ("files", "a stray shard", "old.idx"),
    }
    assert noted(report) == {
        ("files", "another file", "README.txt"),
        ("files", "another file", "folder"),
    }


def test_the_quarantine_list_must_have_as_many_rows_as_the_manifest_says(clean: Path) -> None:
    (clean / "quarantine.tsv").write_text("split\tclass\tname\treason\ntrain\tn01\ta.jpg\tempty\n")
    assert found(verified(clean)) == {("files", "the quarantine list", "quarantine.tsv")}


@pytest.mark.parametrize("listed", ["train", "val", "other"])
def test_the_quarantine_list_names_as_many_images_of_each_split_as_the_manifest(
    clean: Path, listed: str
) -> None:
    edit_document(clean, lambda d: d["splits"]["train"].update(quarantined=1))
    row = f"{listed}\tn01\ta.jpg\tempty\n"
    (clean / "quarantine.tsv").write_text(f"split\tclass\tname\treason\n{row}")
    report = verified(clean)
    whats = {
        "train": [],
        "val": [
            "it lists 0 images of train, the manifest counts 1",
            "it lists 1 images of val, the manifest counts 0",
        ],
        "other": [
            "it lists 1 images of other, the manifest counts 0",
            "it lists 0 images of train, the manifest counts 1",
        ],
    }
    assert [f.what for f in report.problems] == whats[listed]
    assert {f.where for f in report.problems} <= {"quarantine.tsv"}


def test_a_tar_that_stops_being_readable_is_a_problem_of_its_own(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Folder.read

    def failing(self: Folder, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        if name == "train-000001.tar":
            raise OSError(5, "Input/output error")
        return read(self, name, offset, size_bytes)

    monkeypatch.setattr(Folder, "read", failing)
    calls: list[tuple[int, int]] = []
    report = verified(clean, progress=lambda *call: calls.append(call))
    assert found(report) == {("files", "a tar cannot be read", "train-000001.tar")}
    assert figure(report, "images") == "36 of 36 decoded"
    total = sum(p.stat().st_size for p in clean.iterdir() if p.suffix in (".tar", ".idx"))
    assert calls[-1] == (total, total)


# Bytes of tar and index


def test_a_flipped_byte_of_a_picture_is_found_by_the_checksum(clean: Path) -> None:
    offset, size_bytes = locate(clean / "train-000001.tar", "00000024.cls")
    assert size_bytes == 1
    flip(clean / "train-000001.tar", offset + 100)  # padding: no reader would notice
    assert found(verified(clean)) == {
        ("checksums", "other bytes than were written", "train-000001.tar")
    }


def test_a_damaged_header_hides_nothing_that_the_index_still_leads_to(
    clean: Path, content: dict[str, Members]
) -> None:
    replace_member(content["train-000001"], "00000039.cls", b"7")
    write_set(clean, content)
    tar = clean / "train-000001.tar"
    flip(tar, locate(tar, "00000024.jpg")[0] - 512 + 3)
    report = verified(clean)
    assert found(report) == {
        ("checksums", "other bytes than were written", "train-000001.tar"),
        ("index", "the tar is damaged", "train-000001.tar"),
        ("labels", "a label is out of range", "train-000001.tar: key 00000039"),
    }
    assert figure(report, "images") == "56 of 56 decoded"


def test_a_flipped_digit_of_an_index_is_found_by_checksum_and_by_the_tar(clean: Path) -> None:
    index = clean / "train-000001.idx"
    text = index.read_text()
    line = text.splitlines()[4]
    offset = line.split()[5]
    index.write_text(text.replace(f"cls {offset} ", f"cls {int(offset) + 512} "))
    report = verified(clean)
    assert ("checksums", "other bytes than were written", "train-000001.idx") in found(report)
    assert outcomes(report)["index"] == "wrong"
    assert {f[0] for f in found(report)} <= {"checksums", "index"}


@pytest.mark.parametrize("text", [b"", b"garbage", b"v1.2 20\n", b"\xff" * 100])
def test_beside_a_garbage_index_the_tar_is_still_checked(
    clean: Path, content: dict[str, Members], text: bytes
) -> None:
    replace_member(content["train-000001"], "00000025.json", b"{")
    write_set(clean, content)
    (clean / "train-000001.idx").write_bytes(text)
    report = verified(clean)
    assert found(report) == {
        ("files", "an idx has another size", "train-000001.idx"),
        ("checksums", "other bytes than were written", "train-000001.idx"),
        ("index", "the index is unusable", "train-000001.idx"),
        ("labels", "the JSON is damaged", "train-000001.tar: key 00000025"),
    }
    assert figure(report, "images") == "56 of 56 decoded"


def test_the_index_of_another_shard_is_found_though_the_manifest_has_its_checksum(
    clean: Path,
) -> None:
    foreign = (clean / "train-000000.idx").read_bytes()
    (clean / "train-000001.idx").write_bytes(foreign)
    seal(clean)
    report = verified(clean)
    assert {f[0] for f in found(report)} == {"index"}
    assert all(f[2].startswith("train-000001") for f in found(report))


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda line: line.replace("00000024", "00000099"), "00000099"),
        (lambda line: line.replace("00000024.cls", "00000025.cls"), "00000025.cls"),
        (lambda line: line.replace(" 1 00000024.cls", " 2 00000024.cls"), "with 2"),
    ],
)
def test_names_and_sizes_of_the_index_must_be_those_of_the_tar(
    clean: Path, edit: Callable[[str], str], what: str
) -> None:
    index = clean / "train-000001.idx"
    lines = index.read_text().split("\n")
    assert "00000024" in lines[5] and edit(lines[5]) != lines[5]
    lines[5] = edit(lines[5])
    index.write_text("\n".join(lines))
    seal(clean)
    report = verified(clean)
    where = "train-000001.tar: key 00000024"
    assert found(report) == {("index", "the index disagrees with the tar", where)}
    assert what in report.problems[0].what


def test_a_sample_that_the_index_leaves_out_is_named(clean: Path) -> None:
    index = clean / "train-000001.idx"
    lines = index.read_text().split("\n")
    del lines[5]
    index.write_text("\n".join(["v1.2 19", *lines[1:]]))
    seal(clean)
    where = "train-000001.tar: key 00000024"
    assert found(verified(clean)) == {("index", "the index disagrees with the tar", where)}


def test_a_truncated_tar_is_checked_up_to_its_end(clean: Path) -> None:
    tar = clean / "train-000001.tar"
    offset, size_bytes = locate(tar, "00000030.jpg")
    os.truncate(tar, offset + size_bytes // 2)
    report = verified(clean)
    assert {f for f in found(report) if f[0] != "index"} == {
        ("files", "a tar has another size", "train-000001.tar"),
        ("checksums", "other bytes than were written", "train-000001.tar"),
    }
    assert ("index", "the tar is damaged", "train-000001.tar") in found(report)
    cut = {f"train-000001.tar: key {key:08d}" for key in range(30, 40)}
    assert {f[2] for f in found(report) if f[1] == "a sample is cut off"} == cut
    assert figure(report, "images") == "46 of 46 decoded"


def test_a_tar_with_something_appended_is_wrong(clean: Path) -> None:
    tar = clean / "val-000000.tar"
    extra = clean / "extra"
    write_tar(extra, sample("00000099", encoded(99), 0, "x.JPEG"))
    with tar.open("ab") as file:
        file.write(extra.read_bytes())
    extra.unlink()
    seal(clean)
    assert found(verified(clean)) == {("index", "the tar is damaged", "val-000000.tar")}


def test_a_sample_appended_before_the_end_mark_is_wrong(clean: Path) -> None:
    with tarfile.open(clean / "val-000000.tar", "a", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sample("00000099", encoded(99), 0, "x.JPEG"):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    seal(clean)
    where = "val-000000.tar: key 00000099"
    assert found(verified(clean)) == {("index", "the index disagrees with the tar", where)}


def test_members_that_are_no_samples_of_ours_are_wrong(
    clean: Path, content: dict[str, Members]
) -> None:
    first = content["val-000000"][:3]
    planted: Members = [
        ("README", b"text"),
        *first[1:],
        first[0],
        ("00000001.txt", b"more"),
        *content["val-000000"][3:6],
        ("Upper-Key.jpg", encoded(1)),
        ("Upper-Key.cls", b"1"),
        ("Upper-Key.json", b'{"wnid": "n02", "name": "upper.JPEG"}'),
    ]
    write_tar(clean / "val-000000.tar", planted)
    seal(clean)
    kinds = {f[1:] for f in found(verified(clean)) if f[1] != "the index disagrees with the tar"}
    tar = "val-000000.tar"
    assert kinds >= {
        ("something else in the tar", f"{tar}: README"),
        ("a sample is not jpg, cls, json", f"{tar}: key {first[0][0][:8]}"),
        ("a sample is not jpg, cls, json", f"{tar}: key 00000001"),
        ("a key is no number of a sample", f"{tar}: key Upper-Key"),
    }


def test_a_link_in_place_of_a_picture_is_wrong(clean: Path, content: dict[str, Members]) -> None:
    tar = clean / "val-000000.tar"
    with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in content["val-000000"]:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            if name == "00000005.jpg":
                header.type, header.linkname, header.size = tarfile.SYMTYPE, "00000004.jpg", 0
            archive.addfile(header, io.BytesIO(data) if header.size else None)
    seal(clean)
    report = found(verified(clean))
    assert ("index", "something else in the tar", f"{tar.name}: key 00000005") in report


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_other_formats_of_tar_are_wrong(
    clean: Path, content: dict[str, Members], form: int
) -> None:
    tar = clean / "val-000000.tar"
    with tarfile.open(tar, "w", format=form) as archive:
        for name, data in content["val-000000"]:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            header.mtime = 0.5  # PAX writes a header of its own for a part of a second
            archive.addfile(header, io.BytesIO(data))
    write_index(tar)
    seal(clean)
    report = verified(clean)
    assert {f[:2] for f in found(report)} == {("index", "more than plain ustar")}
    assert ("index", "more than plain ustar", f"{tar.name}: 00000000.jpg") in found(report)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes overwritten, cut out, put in, swapped or lost at the end."""
    at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
    piece = data[at:end]
    return [
        data[:at] + rng.bytes(1 + int(rng.integers(4))) + data[at + 1 :],
        data[:at] + bytes(len(piece)) + data[end:],
        data[:at] + data[end:],
        data[:at] + piece + piece + data[end:],
        data[end:] + data[:end],
        data[:at],
    ][int(rng.integers(6))]


@pytest.mark.parametrize("name", ["train-000001.tar", "train-000001.idx", "manifest.json"])
def test_whatever_bytes_change_the_set_is_wrong_there(clean: Path, name: str) -> None:
    data = (clean / name).read_bytes()
    for seed in range(25):
        changed = damaged(data, np.random.default_rng(seed))
        (clean / name).write_bytes(changed)
        report = verified(clean)
        assert report.is_right == (changed == data)
        assert changed == data or any(name in finding.where for finding in report.problems)


@pytest.mark.parametrize("name", ["train-000001.tar", "train-000001.idx"])
def test_under_right_checksums_too_no_damage_stops_the_check(clean: Path, name: str) -> None:
    data = (clean / name).read_bytes()
    document = json.loads((clean / "manifest.json").read_bytes())
    for seed in range(25):
        changed = damaged(data, np.random.default_rng(seed))
        (clean / name).write_bytes(changed)
        entry = document["splits"]["train"]["shards"][1]
        entry[f"{name[-3:]}_bytes"] = len(changed)
        entry[f"{name[-3:]}_sha256"] = hashlib.sha256(changed).hexdigest()
        write_document(clean, document)
        report = verified(clean, full=True)
        assert {f[0] for f in found(report)} <= {"index", "labels", "images", "duplicates", "order"}
        assert figure(report, "checksums") == "8 of 8 files compared"
        # The other shards are there in full.
        assert int(figure(report, "images").split()[0]) >= 36


# Labels, classes, duplicates


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        (b"4", "a label is out of range"),
        (b"-1", "a label is no number"),
        (b"1\n", "a label is no number"),
        (b"", "a label is no number"),
        ("\u0661".encode(), "a label is no number"),
        (b"1" * 40, "no label"),
    ],
)
def test_a_label_that_is_no_class_is_wrong(
    clean: Path, content: dict[str, Members], label: bytes, kind: str
) -> None:
    replace_member(content["train-000001"], "00000024.cls", label)
    write_set(clean, content)
    report = verified(clean)
    assert found(report) == {("labels", kind, "train-000001.tar: key 00000024")}
    assert figure(report, "labels") == "55 labels in range"


def test_swapped_labels_are_wrong_on_both_samples(clean: Path, content: dict[str, Members]) -> None:
    members = dict(content["train-000000"])
    first = next(name for name in members if name.endswith(".cls"))
    other = next(n for n in members if n.endswith(".cls") and members[n] != members[first])
    replace_member(content["train-000000"], first, members[other])
    replace_member(content["train-000000"], other, members[first])
    write_set(clean, content)
    report = verified(clean)
    assert found(report) == {
        ("labels", "label and JSON disagree", f"train-000000.tar: key {name[:8]}")
        for name in (first, other)
    }
    labels = {f"its label is {members[name].decode()}," for name in (first, other)}
    assert {f.what[: len("its label is 0,")] for f in report.problems} == labels


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        (b'{"wnid": "n09", "name": "a"}', "label and JSON disagree"),
        (b'{"wnid": "n01"', "the JSON is damaged"),
        (b'{"wnid": "n01"}', "the JSON is damaged"),
        (b'["n01", "a"]', "the JSON is damaged"),
        (b"\xff\xfe", "the JSON is damaged"),
        (b"[" * 5000, "the JSON is damaged"),
    ],
)
def test_json_that_does_not_tell_class_and_name_is_wrong(
    clean: Path, content: dict[str, Members], about: bytes, kind: str
) -> None:
    replace_member(content["train-000001"], "00000024.json", about)
    write_set(clean, content)
    assert found(verified(clean)) == {("labels", kind, "train-000001.tar: key 00000024")}


def test_a_class_that_training_would_not_see_is_wrong(tmp_path: Path) -> None:
    content = members_of_set()
    out = write_set(tmp_path / "set", content, classes=(*CLASSES, "n05"))
    assert found(verified(out)) == {("classes", "a class without samples", "n05")}


def test_what_is_missing_of_imagenet_is_noted(tmp_path: Path) -> None:
    wnids = tuple(sorted(imagenet_classes()))[:2]
    members: Members = []
    for i, label in enumerate(np.random.default_rng(0).permutation(60).tolist()):
        label %= 2
        members += sample(f"{i:08d}", encoded(i), label, f"{i}.JPEG", wnids[label])
    out = write_set(tmp_path / "set", {"val-000000": members}, classes=wnids)
    report = verified(out)
    assert report.is_right
    assert noted(report) == {("classes", "val differs from ImageNet-1k", "2 of 2 classes")}
    assert report.notes[0].what == (
        "val has 60 of their 100 images in ImageNet-1k; first, n01440764 has 30 of 50"
    )


def test_a_key_twice_in_a_split_is_wrong(clean: Path, content: dict[str, Members]) -> None:
    again = sample("00000003", encoded(500), 1, "another.JPEG")
    content["train-000002"] += again
    write_set(clean, content)
    report = verified(clean)
    kind = "the same key twice in a split"
    assert found(report) == {("duplicates", kind, "train-000002.tar: key 00000003")}
    assert report.problems[0].what == "as train-000000.tar: key 00000003"


def test_an_original_twice_in_a_split_is_wrong(clean: Path, content: dict[str, Members]) -> None:
    about = json.loads(dict(content["train-000000"])["00000003.json"])
    label = CLASSES.index(about["wnid"])
    content["train-000002"] += sample("00000048", encoded(500), label, about["name"])
    write_set(clean, content)
    kind = "the same class and original name twice in a split"
    assert found(verified(clean)) == {("duplicates", kind, "train-000002.tar: key 00000048")}


def test_pictures_of_the_same_bytes_are_noted_by_where_and_how_labelled(
    clean: Path, content: dict[str, Members]
) -> None:
    train = dict(content["train-000000"])
    picture, label = train["00000003.jpg"], int(train["00000003.cls"])
    other = (label + 1) % len(CLASSES)
    content["train-000002"] += sample("00000048", picture, label, "again.JPEG")
    content["train-000002"] += sample("00000049", picture, other, "mislabelled.JPEG")
    content["val-000000"] += sample("00000008", picture, label, "leak.JPEG")
    write_set(clean, content)
    report = verified(clean)
    assert report.is_right
    first = "train-000000.tar: key 00000003"
    assert {(f.kind.name, f.where, f.what) for f in report.notes} == {
        ("an image twice in train", "train-000002.tar: key 00000048", f"as {first}"),
        ("an image twice in train", "train-000002.tar: key 00000049", f"as {first}"),
        ("an image in two splits", first, "as val-000000.tar: key 00000008"),
        ("an image with two labels", first, "as train-000002.tar: key 00000049"),
    }
    assert figure(report, "duplicates") == (
        "images repeated in their split: 2; in two splits: 1; with two labels: 1"
    )
    assert outcomes(report)["duplicates"] == "note"


def test_a_val_that_is_made_of_train_is_a_leak(clean: Path, content: dict[str, Members]) -> None:
    content["val-000000"] = [
        (f"{i // 3:08d}.{name.partition('.')[2]}", data)
        for i, (name, data) in enumerate(content["train-000000"])
    ]
    write_set(clean, content)
    report = verified(clean)
    assert found(report) == {("duplicates", "a leak", "train and val")}
    assert not report.is_right


# Order


def in_order_of_class(content: Mapping[str, Members]) -> dict[str, Members]:
    """The same samples with the train split sorted by class, under keys that count up."""
    train = [name for name in content if name.startswith("train")]
    trios: Iterable[Members] = (
        content[name][at : at + 3] for name in train for at in range(0, len(content[name]), 3)
    )
    ordered = sorted(trios, key=lambda trio: trio[1][1])
    renamed = [
        [(f"{key:08d}.{name.partition('.')[2]}", data) for name, data in trio]
        for key, trio in enumerate(ordered)
    ]
    result = dict(content)
    for name in train:
        count = len(content[name]) // 3
        result[name] = [member for trio in renamed[:count] for member in trio]
        renamed = renamed[count:]
    return result


def test_a_set_in_the_order_of_its_classes_is_wrong(tmp_path: Path) -> None:
    out = write_set(tmp_path / "set", in_order_of_class(members_of_set()))
    report = verified(out)
    assert {f[:2] for f in found(report)} == {("order", "not shuffled")}
    assert "train is no fair shuffle" in report.problems[0].what
    assert sum(report.problem_counts.values()) == 1


def test_the_order_of_tars_that_others_wrote_is_only_noted(tmp_path: Path) -> None:
    out = write_set(tmp_path / "set", in_order_of_class(members_of_set()), seed=None)
    report = verified(out)
    assert report.is_right
    assert {f[:2] for f in noted(report)} == {("order", "not shuffled")}
    assert outcomes(report)["order"] == "note"


# Images


def test_a_png_is_found_whether_its_picture_is_decoded_or_not(
    clean: Path, content: dict[str, Members]
) -> None:
    replace_member(content["train-000001"], "00000024.jpg", encoded(5, "PNG"))
    write_set(clean, content)
    where = ("images", "not a plain JPEG", "train-000001.tar: key 00000024")
    for count, reason in ((0, "89504e47"), (1000, "PNG")):
        report = verified(clean, sample=count)
        assert found(report) == {where}
        assert reason in report.problems[0].what


def test_damage_within_a_picture_is_found_by_decoding(
    clean: Path, content: dict[str, Members]
) -> None:
    picture = dict(content["train-000001"])["00000024.jpg"]
    replace_member(content["train-000001"], "00000024.jpg", picture[: len(picture) * 2 // 3])
    replace_member(content["train-000001"], "00000026.jpg", b"")
    write_set(clean, content)
    report = verified(clean, full=True)
    assert found(report) == {
        ("images", "does not decode", "train-000001.tar: key 00000024"),
        ("images", "does not decode", "train-000001.tar: key 00000026"),
    }
    assert "truncated" in report.problems[0].what
    assert "empty" in report.problems[1].what


def test_as_many_pictures_are_decoded_as_asked_for_spread_over_the_set(
    clean: Path, content: dict[str, Members]
) -> None:
    broken = encoded(1)[:300]
    for members in content.values():
        for name, _ in list(members):
            if name.endswith(".jpg"):
                replace_member(members, name, broken)
    write_set(clean, content)
    for count in (0, 1, 7, 14, 55, 56, 1000):
        report = verified(clean, sample=count)
        decoded = min(count, 56)
        assert figure(report, "images") == f"{decoded} of 56 decoded"
        kinds = {kind.name: n for kind, n in report.problem_counts.items()}
        assert kinds.get("does not decode", 0) == decoded
    seven = [f.where for f in verified(clean, sample=7).problems if f.kind.check == "images"]
    keys = [int(where[-8:]) + 48 * where.startswith("val") for where in seven]
    assert keys == [0, 8, 16, 24, 32, 40, 48]


# As accelssl writes


def renamed(members: Members, keys: Mapping[str, str]) -> Members:
    return [(keys.get(name[:8], name[:8]) + name[8:], data) for name, data in members]


def test_samples_that_changed_places_are_out_of_the_order_of_keys(
    clean: Path, content: dict[str, Members]
) -> None:
    members = content["train-000001"]
    content["train-000001"] = [*members[:6], *members[9:12], *members[6:9], *members[12:]]
    write_set(clean, content)
    where = "train-000001.tar: key 00000022"
    report = verified(clean)
    assert found(report) == {("index", "keys are out of order", where)}
    assert report.problems[0].what == "it comes after train-000001.tar: key 00000023"


def test_shards_that_changed_places_are_out_of_the_order_of_keys(
    clean: Path, content: dict[str, Members]
) -> None:
    content["train-000000"], content["train-000001"] = (
        content["train-000001"],
        content["train-000000"],
    )
    write_set(clean, content)
    where = "train-000001.tar: key 00000000"
    assert found(verified(clean)) == {("index", "keys are out of order", where)}


@pytest.mark.parametrize("key", ["foo", "0000003", "000000003", "00000_03", "0000000x"])
def test_keys_are_numbers_of_eight_digits_or_as_many_as_it_takes(
    clean: Path, content: dict[str, Members], key: str
) -> None:
    content["val-000000"] = renamed(content["val-000000"], {"00000003": key})
    write_set(clean, content)
    problems = {f for f in found(verified(clean)) if f[1] == "a key is no number of a sample"}
    assert problems == {("index", "a key is no number of a sample", f"val-000000.tar: key {key}")}


def test_keys_of_nine_digits_are_right_where_eight_do_not_do(tmp_path: Path) -> None:
    keys = [f"{99_999_998 + i:08d}" for i in range(4)]
    members = [m for i, key in enumerate(keys) for m in sample(key, encoded(i), i, f"{i}.JPEG")]
    skipped = 99_999_998
    out = write_set(tmp_path / "set", {"train-000000": members})
    edit_document(out, lambda d: d["splits"]["train"].update(quarantined=skipped))
    report = verified(out)
    assert report.is_right, str(report)


def edit_document(out: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads((out / "manifest.json").read_bytes())
    edit(document)
    write_document(out, document)


@pytest.mark.parametrize(
    ("quarantined", "is_right"), [(0, False), (1, False), (2, True), (3, True)]
)
def test_no_more_keys_may_be_skipped_than_images_did_not_decode(
    clean: Path, content: dict[str, Members], quarantined: int, is_right: bool
) -> None:
    del content["train-000001"][9:15]  # keys 23 and 24
    write_set(clean, content)
    edit_document(clean, lambda d: d["splits"]["train"].update(quarantined=quarantined))
    report = verified(clean)
    if is_right:
        assert report.is_right
        return
    assert found(report) == {("index", "more keys are skipped than images", "train")}
    assert report.problems[0].what == (
        "2 of the numbers up to 47 are no keys; "
        f"by the manifest {quarantined} images did not decode"
    )


def test_a_label_with_zeros_before_it_is_wrong(clean: Path, content: dict[str, Members]) -> None:
    name = "00000024.cls"
    label = dict(content["train-000001"])[name]
    replace_member(content["train-000001"], name, b"0" + label)
    write_set(clean, content)
    where = "train-000001.tar: key 00000024"
    report = verified(clean)
    assert found(report) == {("labels", "a label has zeros before it", where)}
    assert repr(b"0" + label) in report.problems[0].what
    assert figure(report, "labels") == "56 labels in range"


def test_more_in_the_json_than_accelssl_writes_is_noted(
    clean: Path, content: dict[str, Members]
) -> None:
    about = json.loads(dict(content["train-000001"])["00000024.json"])
    text = json.dumps(about | {"width": 3, "box": []}).encode()
    replace_member(content["train-000001"], "00000024.json", text)
    write_set(clean, content)
    report = verified(clean)
    assert report.is_right
    kind = "the JSON has more than wnid and name"
    assert noted(report) == {("labels", kind, "train-000001.tar: key 00000024")}
    assert report.notes[0].what == "it also has 'box', 'width'"


def test_more_transcoded_images_than_images_are_wrong(clean: Path) -> None:
    edit_document(clean, lambda d: d["splits"]["val"].update(transcoded={"PNG": 5, "GIF": 3}))
    assert verified(clean).is_right
    edit_document(clean, lambda d: d["splits"]["val"].update(transcoded={"PNG": 5, "GIF": 4}))
    report = verified(clean)
    assert found(report) == {("manifest", "its counts do not add up", "val")}
    assert report.problems[0].what == "9 of its samples are transcoded, of 8 written"


@pytest.mark.parametrize("layout", ["one line", "tabs", "no last line end", "empty lines"])
def test_an_index_that_is_not_a_line_a_sample_is_wrong(clean: Path, layout: str) -> None:
    index = clean / "train-000001.idx"
    text = index.read_text()
    index.write_text(
        {
            "one line": text.replace("\n", " "),
            "tabs": text.replace(" ", "\t"),
            "no last line end": text.rstrip("\n"),
            "empty lines": text.replace("\n", "\n\n"),
        }[layout]
    )
    seal(clean)
    report = verified(clean)
    assert found(report) == {("index", "the index is not a line a sample", index.name)}
    assert figure(report, "images") == "56 of 56 decoded"


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda d: d.update(version=2.0), "version is 2.0, not 2"),
        (lambda d: d.update(more=1), "more means nothing"),
        (lambda d: d["splits"]["val"].update(more=1), "splits.val.more means nothing"),
        (
            lambda d: d["splits"]["train"]["shards"][1].update(more=1),
            "splits.train.shards[1].more means nothing",
        ),
    ],
)
def test_what_accelssl_does_not_write_into_a_manifest_is_wrong(
    clean: Path, edit: Callable[[Any], None], what: str
) -> None:
    edit_document(clean, edit)
    report = verified(clean)
    path = str(clean / "manifest.json")
    assert found(report) == {("manifest", "it is not what accelssl writes", path)}
    assert [f.what for f in report.problems] == [what]


def test_a_manifest_that_is_laid_out_anew_is_wrong(clean: Path) -> None:
    document = json.loads((clean / "manifest.json").read_bytes())
    (clean / "manifest.json").write_text(json.dumps(document))
    assert [f.what for f in verified(clean).problems] == ["it is laid out anew"]


@pytest.mark.parametrize("version", [1, 3, 2.5])
def test_a_manifest_of_another_version_is_not_called_damaged(clean: Path, version: float) -> None:
    edit_document(clean, lambda d: d.update(version=version))
    report = verified(clean)
    path = str(clean / "manifest.json")
    assert found(report) == {("manifest", "the manifest is of another version", path)}
    assert f"is of format version {version}; this accelssl reads 2" in report.problems[0].what


@pytest.mark.parametrize("version", [True, "3", [2], None])
def test_a_version_that_is_no_number_is_damage(clean: Path, version: object) -> None:
    edit_document(clean, lambda d: d.update(version=version))
    assert [f.kind.name for f in verified(clean).problems] == ["the manifest is damaged"]


def test_a_manifest_that_may_not_be_read_is_not_called_damaged(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Folder.read

    def denied(self: Folder, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        if name == "manifest.json":
            raise PermissionError(13, "Permission denied")
        return read(self, name, offset, size_bytes)

    monkeypatch.setattr(Folder, "read", denied)
    report = verified(clean)
    path = str(clean / "manifest.json")
    assert found(report) == {("manifest", "the manifest cannot be read", path)}
    assert report.problems[0].what == f"{path} cannot be read: Permission denied."
    assert figure(report, "images") == "56 of 56 decoded"


def test_a_check_that_could_not_be_made_is_not_called_ok(clean: Path) -> None:
    size_bytes = sum(p.stat().st_size for p in clean.iterdir() if p.suffix in (".tar", ".idx"))
    (clean / "manifest.json").write_bytes(b"{")
    report = verified(clean)
    figures = {check.name: check.figure for check in report.checks if check.outcome == "note"}
    assert figures == {
        "files": "not checked: the manifest names no files; "
        f"4 tars with index, {size_bytes / 1e6:,.1f} MB",
        "checksums": "not checked: the manifest has no checksums",
        "labels": "not checked: the manifest names no classes; 56 labels are numbers",
        "classes": "not checked: the manifest names no classes",
    }
    assert {name for name, outcome in outcomes(report).items() if outcome == "ok"} == {
        "index",
        "duplicates",
        "order",
        "images",
    }


# Tars that others wrote


@pytest.fixture
def adopted(tmp_path: Path) -> Path:
    root = tmp_path / "theirs"
    root.mkdir()
    members: Members = []
    for i in range(40):
        label = i // 10
        folder = f"./part {label}"
        members += [
            (f"{folder}/{i:04d}.cls", f"{label}\n".encode()),
            (f"{folder}/{i:04d}.txt", b"a caption"),
            (f"{folder}/{i:04d}.jpeg", encoded(i)),
        ]
    write_tar(root / "photos.v1.tar", members, tarfile.PAX_FORMAT)
    index_shards(root, workers=1)
    return root


def test_adopted_tars_are_right_in_their_own_order_and_under_their_own_names(
    adopted: Path,
) -> None:
    report = verified(adopted, full=True)
    assert report.is_right, str(report)
    assert {f[:2] for f in noted(report)} == {("order", "not shuffled")}
    assert figure(report, "images") == "40 of 40 decoded"
    assert figure(report, "labels") == "40 labels in range"


def test_keys_labels_and_json_of_others_need_not_be_as_accelssl_writes_them(tmp_path: Path) -> None:
    members: Members = []
    for i in (7, 3, 900, 5):
        about = json.dumps({"wnid": f"n{i % 2}", "name": f"{i}.jpg", "width": 5}).encode()
        members += [(f"{i}.jpg", encoded(i)), (f"{i}.cls", b"0%d" % (i % 2)), (f"{i}.json", about)]
    write_tar(tmp_path / "a.tar", members)
    assert index_shards(tmp_path, workers=1).is_a_set
    report = verified(tmp_path)
    assert not report.problems and not report.notes, str(report)


def seal_adopted(root: Path, lines: list[str]) -> None:
    """Write an index, and its checksums into the manifest."""
    index = root / "photos.v1.idx"
    index.write_text("\n".join(lines))
    document = json.loads((root / "manifest.json").read_bytes())
    entry = document["splits"]["train"]["shards"][0]
    entry["idx_sha256"] = hashlib.sha256(index.read_bytes()).hexdigest()
    entry["idx_bytes"] = index.stat().st_size
    write_document(root, document)


@pytest.mark.parametrize(("moved", "longer"), [(512, -512), (0, 1)])
def test_what_the_index_of_an_adopted_tar_names_must_be_data_of_its_members(
    adopted: Path, moved: int, longer: int
) -> None:
    lines = (adopted / "photos.v1.idx").read_text().split("\n")
    words = lines[7].split(" ")
    at = words.index("jpg") + 1
    words[at] = str(int(words[at]) + moved)
    words[at + 1] = str(int(words[at + 1]) + longer)
    key = words[at + 2].rpartition(".")[0]
    lines[7] = " ".join(words)
    seal_adopted(adopted, lines)
    where = f"photos.v1.tar: key {key}"
    assert found(verified(adopted, sample=0)) == {
        ("index", "the index disagrees with the tar", where)
    }


def test_beside_a_garbage_index_an_adopted_tar_is_still_checked(adopted: Path) -> None:
    (adopted / "photos.v1.idx").write_bytes(b"garbage")
    report = verified(adopted, full=True)
    assert ("index", "the index is unusable", "photos.v1.idx") in found(report)
    assert figure(report, "images") == "40 of 40 decoded"
    assert figure(report, "labels") == "40 labels in range"


# The report


def test_a_kind_of_problem_is_listed_twenty_times_and_counted_in_full(
    clean: Path, content: dict[str, Members]
) -> None:
    for members in content.values():
        for name, _ in list(members):
            if name.endswith(".json"):
                replace_member(members, name, b"{}")
    write_set(clean, content)
    report = verified(clean)
    assert len(report.problems) == 20
    assert list(report.problem_counts.values()) == [56]
    text = str(report)
    assert text.startswith(f"{clean}: wrong, 56 problems\n")
    assert "wrong: labels: the JSON is damaged (56)" in text
    assert text.count("train-00000") == 20 and "and 36 more" in text


def test_the_report_is_a_line_a_check_and_reads_back_as_json(clean: Path) -> None:
    (clean / "val-000000.tar").unlink()
    report = verified(clean)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[1:10]] == [
        *("manifest", "files", "checksums", "index", "labels", "classes", "duplicates", "order"),
        "images",
    ]
    document = json.loads(report.to_json())
    assert document["is_right"] is False
    assert document["problems"] == [
        {
            "check": "files",
            "kind": "a tar is missing",
            "count": 1,
            "first": [{"where": "val-000000.tar", "what": "it is in the manifest"}],
        }
    ]
    assert [check["outcome"] for check in document["checks"]] == [c.outcome for c in report.checks]


@pytest.mark.parametrize("name", ["b\udcff\udcfe.jpg", "two\nlines.jpg", "\x1b[31m.jpg", "ä.jpg"])
def test_names_that_are_no_text_are_shown_as_escapes(clean: Path, name: str) -> None:
    key = name.removesuffix(".jpg")
    members = [(f"{key}{m[8:]}", data) for m, data in sample("0" * 8, encoded(1), 1, "a.JPEG")]
    write_tar(clean / "val-000000.tar", members)
    seal(clean)
    report = verified(clean)
    assert ("index", "a key is no number of a sample") in {f[:2] for f in found(report)}
    text = str(report)
    assert all(line.isprintable() for line in text.splitlines())
    text.encode()
    assert json.loads(report.to_json())["is_right"] is False


def test_headers_that_lead_in_circles_end_the_walk(clean: Path) -> None:
    tar = clean / "val-000000.tar"
    at = locate(tar, "00000005.cls")[0] - 512
    header = bytearray(tar.read_bytes()[at : at + 512])
    # A negative size in base 256, and the checksum that makes the header valid.
    header[124:136] = (-(512 * 4) & ((1 << 96) - 1)).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    overwrite(tar, at, bytes(header))
    seal(clean)
    assert ("index", "the tar is damaged", tar.name) in found(verified(clean))


def test_thousands_of_headers_for_one_name_end_the_walk(clean: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    tar = clean / "val-000000.tar"
    tar.write_bytes(block * 5000 + tar.read_bytes())
    seal(clean)
    assert ("index", "the tar is damaged", tar.name) in found(verified(clean))


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "-512", "1e3", "x"])
def test_numbers_of_an_index_that_make_no_sense_make_it_unusable(clean: Path, number: str) -> None:
    index = clean / "val-000000.idx"
    lines = index.read_text().split("\n")
    words = lines[3].split(" ")
    words[1] = number
    lines[3] = " ".join(words)
    index.write_text("\n".join(lines))
    seal(clean)
    assert found(verified(clean)) == {("index", "the index is unusable", "val-000000.idx")}


def test_a_file_that_reads_ahead_gives_the_bytes_of_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.bytes(10_007)
    (tmp_path / "file").write_bytes(data)
    with (
        StorageFile(Folder(tmp_path), "file", len(data), piece_bytes=512) as raw,
        io.BufferedReader(raw, 100) as file,
    ):
        assert file.read() == data
        for _ in range(500):
            offset, size = int(rng.integers(11_000)), int(rng.integers(2_000))
            file.seek(offset)
            assert file.read(size) == data[offset : offset + size]


def test_a_walk_with_steps_back_reads_each_byte_of_the_storage_once(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "file").write_bytes(data)
    reads: list[tuple[int, int]] = []

    class Counted(Folder):
        def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            assert size_bytes is not None
            reads.append((offset, size_bytes))
            return super().read(name, offset, size_bytes)

    with StorageFile(Counted(tmp_path), "file", len(data), piece_bytes=1000) as file:
        for at in range(0, len(data), 300):
            file.seek(at)
            file.read(100)
            file.seek(max(0, at - 900))
            file.read(10)
    assert sorted(reads) == [(at, min(1000, len(data) - at)) for at in range(0, len(data), 1000)]
