"""The checker of shard sets: whole sets of our own and of others, and how it reports on them."""

import dataclasses
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.shards.adopt.adopt import index_shards
from accelssl.shards.verify.verify import verify_shards
from accelssl.shards.write.shard_imagenet import shard_images
from tests.shards.planted_sets import (
    CLASSES,
    Members,
    encoded,
    figure,
    flip,
    found,
    noted,
    outcomes,
    overwrite,
    replace_member,
    sample,
    seal,
    verified,
    write_document,
    write_set,
    write_tar,
)

ODD_IMAGES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "odd_images.tar"


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


def test_pictures_of_which_none_was_decoded_are_not_called_ok(clean: Path) -> None:
    report = verified(clean, sample=0)
    (images,) = (check for check in report.checks if check.name == "images")
    assert images.outcome == "note" and report.is_right
    assert images.figure == "not checked: 0 of 56 decoded"


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
