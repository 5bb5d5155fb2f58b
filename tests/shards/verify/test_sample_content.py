"""The checker of shard sets: faults of keys, labels, classes, order and images."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accelssl.shards.sources.ilsvrc2012 import imagenet_classes
from accelssl.shards.write.shard_imagenet import shard_images
from tests.shards.planted_sets import (
    CLASSES,
    Members,
    edit_document,
    encoded,
    figure,
    found,
    members_of_set,
    noted,
    outcomes,
    replace_member,
    sample,
    verified,
    write_set,
)

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


def test_classes_that_nothing_is_judged_on_are_noted(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    for split, names in (("train", "abc"), ("val", "b")):
        for name in names:
            (pictures / split / name).mkdir(parents=True)
            for i in range(4):
                picture = Image.new("RGB", (32, 32), (i, ord(name), len(split)))
                picture.save(pictures / split / name / f"{i}.jpg")
    shard_images(pictures, tmp_path / "set", workers=1)
    report = verified(tmp_path / "set")
    assert report.is_right
    assert ("classes", "classes without samples in val", "2 of 3 classes") in noted(report)
    assert "val has none of them; first, a" in str(report)


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
    assert "train is not shuffled" in report.problems[0].what
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
        unseen = "" if count else "not checked: "
        assert figure(report, "images") == f"{unseen}{decoded} of 56 decoded"
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
