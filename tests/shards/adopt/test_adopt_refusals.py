"""Tars that readers take differently are refused; each reason is named with its first place."""

import bz2
import gzip
import importlib
import io
import itertools
import lzma
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelssl.shards.adopt.adopt import index_shards
from accelssl.shards.adopt.webdataset_names import why_taken_otherwise
from accelssl.shards.tars.tar_samples import key_and_extension
from tests.shards.adopt.tars_of_others import (
    IMAGES,
    TRUTH,
    Member,
    dali_reader,
    jpeg,
    pack,
    plain,
    refusal,
    webdataset_samples,
)

# What is refused: members, reason, first place, count; all but the members as in the report.
BAD: dict[str, tuple[list[Member], str, str, int]] = {
    "dotted keys": (
        plain(TRUTH, "img.v2.{:04d}"),
        "a key has a dot in it",
        "img.v2.0000.jpg",
        14,
    ),
    "a dotted pair beside a plain one": (
        [*plain(TRUTH), ("0006.b.jpg", IMAGES[0]), ("0006.b.cls", b"1")],
        "a key has a dot in it",
        "0006.b.jpg",
        2,
    ),
    "all images first": (
        plain(TRUTH)[::2] + plain(TRUTH)[1::2],
        "the members of a sample are apart from each other",
        "0000.cls",
        7,
    ),
    "extras at the end": (
        [*plain(TRUTH), ("0001.txt", b""), ("0002.txt", b"")],
        "the members of a sample are apart from each other",
        "0001.txt",
        2,
    ),
    "a key twice": (
        [*plain(TRUTH), *plain(TRUTH[:2])],
        "two samples have the same key",
        "0000.jpg",
        2,
    ),
    "a name twice": (
        [*plain(TRUTH[:1]), *plain(TRUTH[:1])],
        "a sample has two members of the same name",
        "0000.jpg",
        1,
    ),
    "a name twice but for case": (
        [*plain(TRUTH), ("0006.JPG", IMAGES[0])],
        "a sample has two members of the same name",
        "0006.JPG",
        1,
    ),
    "two images": (
        [*plain(TRUTH), ("0006.jpeg", IMAGES[0])],
        "a sample has two images",
        "0006.jpeg",
        1,
    ),
    "no label": (
        [*plain(TRUTH), ("x.jpg", IMAGES[0]), ("y.jpg", IMAGES[1])],
        "a sample has no label (.cls)",
        "x.jpg",
        2,
    ),
    "no image": (
        [("x.cls", b"0"), ("x.png", jpeg(0, form="PNG")), *plain(TRUTH)],
        "a sample has no image (.jpg, .jpeg)",
        "x.cls",
        1,
    ),
    "neither": (
        [("LICENSE.txt", b""), *plain(TRUTH)],
        "a sample has no image (.jpg, .jpeg) and no label (.cls)",
        "LICENSE.txt",
        1,
    ),
    "an empty image": (
        [*plain(TRUTH), ("x.jpg", b""), ("x.cls", b"0")],
        "an image is an empty file",
        "x.jpg",
        1,
    ),
    "PNG": (
        [*plain(TRUTH), *plain([(jpeg(0, form="PNG"), 0)] * 2, "png{}")],
        "an image is no plain upright JPEG (not a JPEG)",
        "png0.jpg",
        2,
    ),
    "names that webdataset passes over": (
        plain(TRUTH, "__data__/{}"),
        "webdataset passes over names like this",
        "__data__/0.jpg",
        7,
    ),
}
BAD |= {
    f"the label {text!r}": (
        [*plain(TRUTH), ("x.jpg", IMAGES[0]), ("x.cls", text)],
        "a label is not a whole number in digits alone",
        f"x.cls holds {text[:32]!r}",
        1,
    )
    for text in (b"", b"cat", b"-1", b"+1", b"1.0", b"1_0", b" 1", b"1\0", "٣".encode(), b"1" * 33)
}


@pytest.mark.parametrize("name", BAD)
def test_a_tar_that_readers_take_differently_is_refused_by_name(tmp_path: Path, name: str) -> None:
    members, reason, first, count = BAD[name]
    pack(tmp_path / "bad.tar", members)
    pack(tmp_path / "good.tar", plain(TRUTH))
    (tmp_path / "bad.idx").write_bytes(b"theirs")
    report = index_shards(tmp_path, workers=1)
    assert {
        tar: [(f.what, f.first, f.count) for f in found] for tar, found in report.refused.items()
    } == {"bad.tar": [(reason, first, count)]}
    more = f" and {count - 1} more" if count > 1 else ""
    assert f"bad.tar: {reason}: {first}{more}\n" in str(report)
    assert not report.is_a_set
    assert sorted(os.listdir(tmp_path)) == ["bad.idx", "bad.tar", "good.tar"]  # noqa: PTH208
    assert (tmp_path / "bad.idx").read_bytes() == b"theirs"


@pytest.mark.parametrize("name", ["dotted keys", "all images first", "a key twice"])
def test_webdataset_makes_other_samples_of_what_is_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", BAD[name][0])
    found = webdataset_samples(tmp_path / "a.tar")
    if name == "a key twice":
        keys = [sample["__key__"] for sample in found]
        assert len(keys) == 9
        assert len(set(keys)) == 7
    else:
        whole = [sample for sample in found if {"jpg", "cls"} <= sample.keys()]
        assert (len(found), whole) == ({"dotted keys": 1, "all images first": 14}[name], [])


@pytest.mark.parametrize("name", ["a name twice", "a name twice but for case"])
def test_webdataset_fails_at_names_that_are_there_twice(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", BAD[name][0])
    with pytest.raises(ValueError, match="duplicate file name"):
        webdataset_samples(tmp_path / "a.tar")


def test_webdataset_reads_nothing_of_what_it_passes_over(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", BAD["names that webdataset passes over"][0])
    assert webdataset_samples(tmp_path / "a.tar") == []


@pytest.mark.parametrize(
    "name", ["dotted keys", "all images first", "extras at the end", "no label", "neither"]
)
def test_dali_by_itself_fails_at_what_is_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    pack(tmp_path / "b.tar", BAD[name][0])
    dali_reader([str(tmp_path / "a.tar")], [], ext=["jpg", "cls"]).run()
    with pytest.raises(RuntimeError, match="Underful sample"):
        dali_reader([str(tmp_path / "b.tar")], [], ext=["jpg", "cls"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("extension", ["jpg", "cls", "json"])
def test_links_are_refused_and_are_nothing_to_webdataset(
    tmp_path: Path, kind: bytes, extension: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in [*plain(TRUTH[:2]), ("0001.json", b"{}")]:
            header = tarfile.TarInfo(name)
            if name == f"0001.{extension}":
                header.type, header.linkname = kind, f"0000.{extension}"
                tar.addfile(header)
            else:
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    assert refusal(tmp_path) == f"an image, label or JSON is a link: 0001.{extension}"
    assert extension not in webdataset_samples(tmp_path / "a.tar")[1]


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_are_refused(tmp_path: Path, form: str) -> None:
    content, out = tmp_path / "content", tmp_path / "set"
    content.mkdir()
    out.mkdir()
    with (content / "0.jpg").open("wb") as file:
        file.write(IMAGES[0])
        file.truncate(1 << 20)
    (content / "0.cls").write_bytes(b"0")
    command = ["tar", f"--format={form}", "--sparse", "-cf", str(out / "a.tar")]
    subprocess.run([*command, "-C", str(content), "0.jpg", "0.cls"], check=True)
    assert (out / "a.tar").stat().st_size < 1 << 16
    assert refusal(out) == "an image, label or JSON is a special or sparse file: 0.jpg"


@pytest.mark.parametrize("transform", ["CMYK", "RGB", "cut", "turned"])
def test_images_that_decoders_turn_to_different_pixels_are_refused(
    tmp_path: Path, transform: str
) -> None:
    odd = {
        "CMYK": lambda: jpeg(1, "CMYK"),
        "RGB": lambda: jpeg(1, keep_rgb=True),
        "cut": lambda: jpeg(1)[:-40],
        "turned": lambda: jpeg(
            1, exif=b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6" + bytes(7)
        ),
    }[transform]()
    pack(tmp_path / "a.tar", plain([*TRUTH, (odd, 1)]))
    said = refusal(tmp_path)
    assert said.startswith("an image is no plain upright JPEG (")
    assert said.endswith("): 0007.jpg")


def test_a_label_outside_the_given_classes_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    assert refusal(tmp_path, classes=["a", "b"]) == (
        "a label is not one of 0 to 1: 0002.cls holds 2 and 1 more"
    )


def test_a_label_that_must_be_something_else_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain([*TRUTH, (IMAGES[0], 1_000_000)]))
    assert refusal(tmp_path) == "a label is not one of 0 to 999999: 0007.cls holds 1000000"


@pytest.mark.parametrize(
    ("compress", "program"),
    [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz")],
)
def test_compressed_tars_are_refused_and_no_tars_to_dali(
    tmp_path: Path, compress: Callable[[bytes], bytes], program: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    index_shards(tmp_path, workers=1)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "a.tar").write_bytes(compress((tmp_path / "a.tar").read_bytes()))
    assert refusal(tmp_path) == f"it is compressed: unpack it with {program} first"
    with pytest.raises(RuntimeError):
        dali_reader([str(tmp_path / "a.tar")], [], ext=["jpg", "cls"]).run()


def damaged(whole: bytes, how: str) -> bytes:
    if how == "cut within an image":
        return whole[:3000]
    if how == "cut between members":
        return whole[: whole.index(b"0003.jpg")]
    if how == "a damaged header":
        at = whole.index(b"0003.jpg")
        return whole[:at] + b"X" + whole[at + 1 :]
    if how == "two in one file":
        return whole + whole
    return {"nothing": b"", "zeros": bytes(1024) + b"1", "text": b"no tar at all" * 99}[how]


@pytest.mark.parametrize(
    "how",
    [
        "cut within an image",
        "cut between members",
        "a damaged header",
        "two in one file",
        "nothing",
        "zeros",
        "text",
    ],
)
def test_damaged_tars_are_refused(tmp_path: Path, how: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(damaged(whole, how))
    assert refusal(tmp_path).startswith("it is damaged: it ")


@pytest.mark.parametrize("how", ["a damaged header", "two in one file"])
def test_webdataset_loses_samples_of_damaged_tars_without_a_word(tmp_path: Path, how: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(damaged(whole, how))
    inside = {"a damaged header": 7, "two in one file": 14}[how]
    assert len(webdataset_samples(tmp_path / "a.tar")) < inside


def test_all_that_is_wrong_with_a_tar_is_said_at_once(tmp_path: Path) -> None:
    members = [*plain(TRUTH), *BAD["PNG"][0][-4:], ("x.jpg", IMAGES[0]), ("y.cls", b"0")]
    pack(tmp_path / "a b.tar", members)
    whole = (tmp_path / "a b.tar").read_bytes()
    (tmp_path / "a b.tar").write_bytes(whole[: whole.index(b"y.cls") + 512 + 512])
    report = index_shards(tmp_path, workers=1)
    assert [found.what for found in report.refused["a b.tar"]] == [
        "its name does not fit",
        "it is damaged",
        "an image is no plain upright JPEG (not a JPEG)",
        "a sample has no label (.cls)",
    ]
    assert "Repair these tars, or move them away." in str(report)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("f/._0001.jpg", "webdataset takes a hidden file in a folder for a sample"),
        ("f/.x", "webdataset takes a hidden file in a folder for a sample"),
        ("v1.0/f/.x", "webdataset takes a hidden file in a folder for a sample"),
        ("f/0000.__bad__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__KEY__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__url__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__local_path__", "webdataset keeps extensions like this for itself"),
    ],
)
def test_a_member_that_upsets_webdataset_is_refused(
    tmp_path: Path, extra: str, reason: str
) -> None:
    members = plain(TRUTH, "f/{:04d}")
    members.insert(1, (extra, b"any"))
    pack(tmp_path / "a.tar", members)
    assert f"{reason}: {extra}" in refusal(tmp_path)


def test_hidden_images_and_labels_in_folders_are_refused_and_samples_to_webdataset(
    tmp_path: Path,
) -> None:
    pack(tmp_path / "a.tar", [("a/.jpg", IMAGES[0]), ("a/.cls", b"0"), *plain(TRUTH)])
    assert "a hidden file in a folder for a sample: a/.jpg and 1 more" in refusal(tmp_path)
    assert len(webdataset_samples(tmp_path / "a.tar")) == len(TRUTH) + 1


def test_names_with_a_line_end_and_a_dot_are_refused_and_nothing_to_webdataset(
    tmp_path: Path,
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH, "v1.0\nx/{}"))
    reason = "webdataset passes over names with a dot and a line end in their folders"
    assert refusal(tmp_path) == f"{reason}: v1.0\nx/0.jpg and 13 more"
    assert webdataset_samples(tmp_path / "a.tar") == []


def test_what_webdataset_takes_otherwise_is_told_of_all_short_names() -> None:
    iterators: Any = importlib.import_module("webdataset.tariterators")
    for length in range(1, 8):
        for letters in itertools.product("a./\n", repeat=length):
            path = "".join(letters)
            ours = key_and_extension(path) or (None, None)
            is_otherwise = iterators.base_plus_ext(path) != ours
            assert (why_taken_otherwise(path) is not None) == is_otherwise, repr(path)
