"""Adopted tars: the names of classes, the splits and the order of tars."""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelssl.errors import UserError
from accelssl.shards.adopt.adopt import index_shards
from accelssl.shards.adopt.adopted_set import split_of
from accelssl.shards.manifest import read_manifest
from accelssl.shards.shard_set import open_shards
from accelssl.shards.storage.folder import Folder
from tests.shards.adopt.tars_of_others import (
    TRUTH,
    Member,
    Sample,
    assert_all_read,
    dali_reader,
    pack,
    plain,
    samples,
)

COUNT: Iterator[int] = itertools.count()


def with_json(pairs: Iterable[Sample], about: Callable[[int], object]) -> list[Member]:
    return [
        (f"{n}.{extension}", data)
        for n, (image, label) in enumerate(pairs)
        for extension, data in (
            ("json", json.dumps(about(label)).encode()),
            ("jpg", image),
            ("cls", str(label).encode()),
        )
    ]


def test_json_is_indexed_where_every_sample_of_the_set_has_one(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"was": label}))
    pack(tmp_path / "b.tar", with_json(TRUTH, lambda label: {"was": label}))
    index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.components == ("jpg", "cls", "json")
    assert_all_read(tmp_path, TRUTH * 2)
    split = open_shards(tmp_path).split("train")
    pipeline = dali_reader(split.tars, [t[:-4] + ".idx" for t in split.tars], ext=["json", "cls"])
    for _ in range(2 * len(TRUTH)):
        about, label = (np.asarray(output[0]).tobytes() for output in pipeline.run())
        assert json.loads(about) == {"was": int(label)}


@pytest.mark.parametrize("lacks", ["a tar", "a sample"])
def test_json_is_left_out_where_a_sample_of_the_set_has_none(tmp_path: Path, lacks: str) -> None:
    members = with_json(TRUTH, lambda label: {"wnid": f"n{label}"})
    pack(tmp_path / "a.tar", members)
    pack(tmp_path / "b.tar", plain(TRUTH) if lacks == "a tar" else members[:-3] + members[-2:])
    report = index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.components == ("jpg", "cls")
    assert manifest.classes == ("0", "1", "2")
    assert "not every sample has a JSON, so none is used: a.tar" in str(report)
    assert b"json" not in (tmp_path / "a.idx").read_bytes()
    assert_all_read(tmp_path, TRUTH * 2)


def classes_of(root: Path, **options: Any) -> tuple[str, ...]:
    index_shards(root, workers=1, **options)
    return open_shards(root).classes


def test_class_names_come_from_the_json_where_they_go_together_with_labels(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH[:4], lambda label: {"wnid": f"n{9 - label}"}))
    pack(tmp_path / "b.tar", with_json(TRUTH[4:], lambda label: {"wnid": f"n{9 - label}"}))
    assert classes_of(tmp_path) == ("n9", "n8", "n7")


@pytest.mark.parametrize(
    "about",
    [
        lambda label: {"wnid": "same"},
        lambda label: {"wnid": str(next(COUNT))},
        lambda label: {"wnid": label},
        lambda label: {"wnid": ""},
        lambda label: {"wnid": f"\udce9{label}"},
        lambda label: {"name": "other"},
        lambda label: ["wnid"],
        lambda label: {"wnid": "n2"} if label == 2 else {},
    ],
)
def test_class_names_are_numbers_where_the_json_does_not_tell(
    tmp_path: Path, about: Callable[[int], object]
) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, about))
    assert classes_of(tmp_path) == ("0", "1", "2")


def test_class_names_are_numbers_where_tars_name_a_label_differently(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"wnid": f"a{label}"}))
    pack(tmp_path / "b.tar", with_json(TRUTH, lambda label: {"wnid": f"b{label}"}))
    assert classes_of(tmp_path) == ("0", "1", "2")


def test_broken_json_is_no_reason_to_refuse(tmp_path: Path) -> None:
    members = [m for n, pair in enumerate(TRUTH) for m in plain([pair], f"{n}" + "{}")]
    for n in range(len(TRUTH)):
        members.insert(
            3 * n + 2, (members[3 * n][0][:-3] + "json", (b"", b"{", b"[" * 9999)[n % 3])
        )
    pack(tmp_path / "a.tar", members)
    assert classes_of(tmp_path) == ("0", "1", "2")
    assert_all_read(tmp_path, TRUTH)


def test_given_class_names_win_and_those_without_samples_are_told(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"wnid": f"n{label}"}))
    report = index_shards(tmp_path, classes=["x", "y", "z", "none"], workers=1)
    assert open_shards(tmp_path).classes == ("x", "y", "z", "none")
    assert "1 labels have no sample: 3" in str(report)


@pytest.mark.parametrize(
    ("classes", "said"), [([], "there are none"), (["a", "b", "a"], "'a' is there twice")]
)
def test_class_names_that_do_not_fit_are_an_error(
    tmp_path: Path, classes: list[str], said: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    with pytest.raises(UserError, match=said):
        index_shards(tmp_path, classes=classes, workers=1)
    assert os.listdir(tmp_path) == ["a.tar"]  # noqa: PTH208


def test_a_word_in_its_name_puts_a_tar_into_a_split(tmp_path: Path) -> None:
    split_of_name = {
        "imagenet1k-train-0001": "train",
        "imagenet1k-validation-00": "val",
        "val2017_3": "val",
        "in.val.0": "val",
        "VAL-7": "val",
        "data_valid": "val",
        "invalid": "train",
        "test-1": "test",
        "cifar_test": "test",
        "trainval": "train",
        "evaluation-0": "train",
        "latest": "train",
        "interval": "train",
        "0001": "train",
    }
    assert {name: split_of(name) for name in split_of_name} == split_of_name
    for n, name in enumerate(split_of_name):
        pack(tmp_path / f"{name}.tar", plain(samples(1, first=n)))
    report = index_shards(tmp_path, workers=1)
    opened = open_shards(tmp_path)
    assert sorted(opened.splits) == ["test", "train", "val"]
    for split in opened.splits:
        names = sorted(name for name, its in split_of_name.items() if its == split)
        assert [Path(tar).stem for tar in opened.split(split).tars] == [
            Path(f"{name}.tar").stem for name in names
        ]
        assert (report.splits[split].tars, report.splits[split].samples) == (len(names),) * 2


def test_tars_are_in_the_order_of_their_characters(tmp_path: Path) -> None:
    for n, name in enumerate(("a-10", "a-9", "B-1", "a_1")):
        pack(tmp_path / f"{name}.tar", plain(samples(1, first=n)))
    index_shards(tmp_path, workers=1)
    assert [Path(tar).stem for tar in open_shards(tmp_path).split("train").tars] == [
        "B-1",
        "a-10",
        "a-9",
        "a_1",
    ]
