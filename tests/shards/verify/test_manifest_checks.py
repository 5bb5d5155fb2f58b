"""The checker of shard sets: faults of the manifest and of the list of files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelssl.shards.manifest import ShardEntry, SplitEntry
from accelssl.shards.storage.folder import Folder
from tests.shards.planted_sets import (
    Members,
    edit_document,
    encoded,
    figure,
    found,
    noted,
    outcomes,
    replace_member,
    seal,
    verified,
    write_set,
    write_tar,
)

# Manifest and files


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


def test_the_index_of_another_shard_is_found_though_the_manifest_has_its_checksum(
    clean: Path,
) -> None:
    foreign = (clean / "train-000000.idx").read_bytes()
    (clean / "train-000001.idx").write_bytes(foreign)
    seal(clean)
    report = verified(clean)
    assert {f[0] for f in found(report)} == {"index"}
    assert all(f[2].startswith("train-000001") for f in found(report))


def test_more_transcoded_images_than_images_are_wrong(clean: Path) -> None:
    edit_document(clean, lambda d: d["splits"]["val"].update(transcoded={"PNG": 5, "GIF": 3}))
    assert verified(clean).is_right
    edit_document(clean, lambda d: d["splits"]["val"].update(transcoded={"PNG": 5, "GIF": 4}))
    report = verified(clean)
    assert found(report) == {("manifest", "its counts do not add up", "val")}
    assert report.problems[0].what == "9 of its samples are transcoded, of 8 written"


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
