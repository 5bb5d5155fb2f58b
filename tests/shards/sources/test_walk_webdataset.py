"""WebDataset tars as a source: each image with the label beside it, nothing guessed."""

import gzip
import io
import json
import random
import re
import tarfile
from pathlib import Path

import pytest
import webdataset as wds

from accelssl.errors import UserError
from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.selection import Selection
from accelssl.shards.sources.source import Source

TENCH, SNAKE, ALP = "n01440764", "n01751748", "n09193705"
LABEL = {SNAKE: 2, ALP: 7, TENCH: 11}  # not in the order of the names

Sample = dict[str, object]


def content(key: str) -> bytes:
    return random.Random(key).randbytes(400)


def sample(key: str, wnid: str, **more: object) -> Sample:
    about = {"wnid": wnid, "size": [1, 2]}
    label = str(LABEL[wnid]).encode()
    return {"__key__": key, "jpg": content(key), "cls": label, "json": about, **more}


def write(path: Path, samples: list[Sample]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path)) as tar:
        for one in samples:
            tar.write(one)
    return path


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def rows(source: Source, split: str) -> list[tuple[int, str, str, bytes]]:
    images = [source.image(split, i) for i in range(source.count(split))]
    return [(im.label, im.wnid, im.name, im.read()) for im in images]


def refusal(source: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_source(source)
    assert caught.value.remedy
    return str(caught.value)


IMAGES = [(f"img{i:03d}", (SNAKE, ALP, TENCH)[i % 3]) for i in range(9)]
SAMPLES = [sample(key, wnid) for key, wnid in IMAGES]


def expected() -> list[tuple[int, str, str, bytes]]:
    wnids = [TENCH, SNAKE, ALP]
    return sorted((wnids.index(wnid), wnid, f"{key}.jpg", content(key)) for key, wnid in IMAGES)


def test_images_are_those_that_the_webdataset_library_reads(tmp_path: Path) -> None:
    write(tmp_path / "set-train-000000.tar", SAMPLES[:5])
    write(tmp_path / "set-train-000001.tar", SAMPLES[5:])
    write(tmp_path / "set-validation-000000.tar", SAMPLES[:1])
    write(tmp_path / "set-test-000000.tar", SAMPLES[:2])
    source = open_source(tmp_path)
    assert source.splits == ("train", "val")
    assert source.count("val") == 1
    shards = [str(tmp_path / f"set-train-{n:06d}.tar") for n in range(2)]
    read = {
        (json.loads(one["json"])["wnid"], f"{one['__key__']}.jpg", one["jpg"])
        for one in wds.WebDataset(shards, shardshuffle=False)
    }
    found = rows(source, "train")
    assert {row[1:] for row in found} == read
    assert found == expected()
    assert source.ignored.examples == ["set-test-000000.tar"]


@pytest.mark.parametrize(
    "names",
    [
        ("00000.tar", "00001.tar"),
        ("train/00000.tar", "train/00001.tar"),
        ("train/a.tar", "train/b.tar"),
    ],
)
def test_tars_may_lie_in_the_source_or_in_a_folder_for_the_split(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    write(tmp_path / names[0], SAMPLES[:5])
    write(tmp_path / names[1], SAMPLES[5:])
    source = open_source(tmp_path)
    assert source.splits == ("train",)
    assert rows(source, "train") == expected()


def test_tars_named_for_val_are_no_train_wherever_they_lie(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.tar", SAMPLES)
    write(tmp_path / "train" / "set-val.tar", SAMPLES[:1])
    write(tmp_path / "val" / "0.tar", SAMPLES[:2])
    source = open_source(tmp_path)
    assert (source.count("train"), source.count("val")) == (9, 2)
    assert source.ignored.examples == ["train/set-val.tar"]


def test_a_single_tar_of_samples_is_a_source(tmp_path: Path) -> None:
    tar = write(tmp_path / "train.tar", SAMPLES)
    for source in (tar, tmp_path):
        assert rows(open_source(source), "train") == expected()


def test_without_wnids_labels_are_the_names_padded_so_that_they_sort_as_numbers(
    tmp_path: Path,
) -> None:
    write(tmp_path / "train-0.tar", [{**one, "json": {"size": 1}} for one in SAMPLES])
    write(tmp_path / "val-0.tar", [{"__key__": "v", "png": b"v", "cls": b"2\n"}])
    source = open_source(tmp_path)
    assert source.classes == ("02", "07", "11")
    assert rows(source, "val") == [(0, "02", "v.png", b"v")]
    assert [row[:2] for row in rows(source, "train")] == [
        (label, name) for label, name in enumerate(("02", "07", "11")) for _ in range(3)
    ]
    chosen = open_source(tmp_path, selection=Selection(classes=("02",)))
    assert (chosen.classes, chosen.count("train"), chosen.count("val")) == (("02",), 3, 1)


def test_if_one_sample_has_no_wnid_all_go_by_their_labels(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", [*SAMPLES, {"__key__": "zz", "jpg": b"z", "cls": b"11"}])
    source = open_source(tmp_path)
    assert source.classes == ("02", "07", "11")
    assert [source.image("train", i).label for i in range(10)] == [0] * 3 + [1] * 3 + [2] * 4


def test_counters_that_start_anew_in_each_tar_are_no_clash(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", [sample("0000", TENCH)])
    write(tmp_path / "train-1.tar", [sample("0000", TENCH, jpg=b"another")])
    found = rows(open_source(tmp_path), "train")
    assert [row[2:] for row in found] == [
        ("train-0/0000.jpg", content("0000")),
        ("train-1/0000.jpg", b"another"),
    ]


def test_names_in_the_json_are_the_names(tmp_path: Path) -> None:
    samples = [
        sample(f"{i:04d}", TENCH, json={"wnid": TENCH, "name": f"{TENCH}_{9 - i}.JPEG"})
        for i in range(3)
    ]
    write(tmp_path / "train-0.tar", samples)
    found = rows(open_source(tmp_path), "train")
    assert [row[2:] for row in found] == [
        (f"{TENCH}_{9 - i}.JPEG", content(f"{i:04d}")) for i in (2, 1, 0)
    ]


def test_a_name_that_contradicts_the_wnid_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", [sample(f"{ALP}_1", TENCH)])
    message = refusal(tmp_path)
    assert f"{TENCH} by its folder" in message
    assert f"{ALP} by the beginning of its name" in message


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a.jpg": b"", "b.cls": b"0"}, r"train-0\.tar/a has no \.cls"),
        ({"a.jpg": b"", "a.png": b"", "a.cls": b"0"}, r"a has 2 images: a\.jpg, a\.png"),
        ({"a.jpg": b"", "a.cls": b"cat"}, r"train-0\.tar/a is b'cat'"),
        ({"a.jpg": b"", "a.cls": b"-1"}, "is b'-1'"),
        ({"a.jpg": b"", "a.cls": b""}, "is b''"),
        ({"a.jpg": b"", "a.cls": "\u0661".encode()}, "no number"),
        ({"a.jpg": b"", "a.cls": b"1" * 30}, "no number"),
        ({"a.jpg": b"", "a.cls": b"0", "a.json": b"{"}, r"json of the sample .*a is not JSON"),
        ({"a.jpg": b"", "a.cls": b"0", "b.jpg": b""}, r"train-0\.tar/b has no \.cls"),
        ({"a.jpg": b"", "a.cls": b"1" + b" " * 40}, "no number"),
        ({"0.jpg": b"", "0.cls": b"0", "0.CLS": b"1"}, r"r/0 has two .*: 0\.cls and 0\.CLS\."),
        ({"a.jpg": b"", "a.JPG": b"", "a.cls": b"0"}, r"a has 2 images: a\.jpg, a\.JPG\."),
        ({"a.jpg": b"", "a.bmp": b"", "a.cls": b"0"}, r"a has 2 images: a\.jpg, a\.bmp\."),
        ({"a.bmp": b"", "a.cls": b"0"}, r"image train-0\.tar/a\.bmp is none of jpg, jpeg, png"),
        ({"a.TIFF": b"", "a.cls": b"0"}, r"image train-0\.tar/a\.TIFF is none of"),
        ({"a.heic": b"", "a.cls": b"0"}, r"train-0\.tar/a has a label, a\.cls, but no image"),
        ({"a.cls": b"0", "b.jpg": b"", "b.cls": b"0"}, r"train-0\.tar/a has a label"),
        ({"a.jpg": b"", "a.cls": b"0", "b.txt": b"", "a.json": b"{}"}, r"r/a are not side by"),
        ({"a.json": b"{}", "b.txt": b"", "a.jpg": b"", "a.cls": b"0"}, r"r/a are not side by"),
        ({"a.jpg": b"", "a.cls": b"0", "b.txt": b"", "a.png": b"", "a.CLS": b"1"}, r"r/a are not"),
        ({"a.jpg": b"", "a.cls": b"0", "a.json": b"[" * 100_000}, r"r/a is nested too deeply"),
        (
            {"a.jpg": b"", "a.cls": b"0", "a.json": b'{"wnid": "\\ud800x"}'},
            r"wnid in the .json of the sample train-0\.tar/a is '\\ud800x', which is no Unicode",
        ),
        (
            {"a.jpg": b"", "a.cls": b"0", "a.json": b'{"name": "\\udfff.jpg"}'},
            r"name in the .json of the sample train-0\.tar/a is '\\udfff.jpg'",
        ),
    ],
)
def test_a_sample_that_is_not_one_image_with_one_label_is_refused(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    pack(tmp_path / "train-0.tar", files)
    assert re.search(named, refusal(tmp_path))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["a.jpg", "a.cls", "img.v2.1.jpg", "img.v2.1.cls"], "img.v2.1.jpg"),
        (["img.v2.1.jpg", "img.v2.1.cls", "b.jpg", "b.cls"], "img.v2.1.jpg"),
        (["a.jpg", "a.v2.cls"], "a.v2.cls"),
        (["a.jpg", "a.cls", "a.v2.PNG", "a.v2.cls"], "a.v2.PNG"),
        (["a.cls", "a.v2.jpg"], "a.v2.jpg"),
        (["x.1.bmp", "x.1.cls", "a.jpg", "a.cls"], "x.1.bmp"),
    ],
)
def test_a_key_with_a_dot_is_refused_as_the_webdataset_library_takes_it_otherwise(
    tmp_path: Path, files: list[str], named: str
) -> None:
    tar = pack(tmp_path / "train-0.tar", dict.fromkeys(files, b"0"))
    read = [set(one) for one in wds.WebDataset(str(tar), shardshuffle=False)]
    assert any(named.partition(".")[2].lower() in fields for fields in read)  # not .jpg or .cls
    message = refusal(tmp_path)
    assert f"The key of train-0.tar/{named} has a dot in it" in message
    assert f"the sample {named.partition('.')[0]} for all readers" in message


@pytest.mark.parametrize("name", ["a.cls", "a.json"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_label_or_json_that_is_a_link_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    files = {"b.jpg": b"y", "b.cls": b"0", "a.jpg": b"x", "a.cls": b"0", "a.json": b"{}"}
    del files[name]
    with tarfile.open(pack(tmp_path / "train-0.tar", files), "a") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, "b.cls"
        tar.addfile(link)
    assert f"train-0.tar/{name} is a link, which cannot be read in place" in refusal(tmp_path)


def test_files_that_are_no_part_of_a_sample_are_counted_each(tmp_path: Path) -> None:
    files = {"x.txt": b"", "a.jpg": b"1", "a.cls": b"0", "y.txt": b"", "x.json": b"{"}
    pack(tmp_path / "train-0.tar", files)
    source = open_source(tmp_path)
    assert rows(source, "train") == [(0, "0", "a.jpg", b"1")]
    assert source.ignored.examples == [f"train-0.tar/{x}" for x in ("x.txt", "y.txt", "x.json")]


@pytest.mark.parametrize(("wnid", "label"), [(TENCH, 7), (ALP, 11), (ALP, 3), (SNAKE, 7)])
def test_labels_and_wnids_must_go_together(tmp_path: Path, wnid: str, label: int) -> None:
    write(tmp_path / "train-0.tar", [sample("a", TENCH), sample("b", ALP)])
    write(tmp_path / "train-1.tar", [sample("c", wnid, cls=str(label).encode())])
    assert f"train-1.tar/c is label {label} and {wnid}" in refusal(tmp_path)


def test_what_else_a_sample_has_is_counted_and_not_taken(tmp_path: Path) -> None:
    files = {"a.jpg": b"1", "a.cls": b"0", "a.txt": b"", "a.seg.png": b"", "README": b""}
    pack(tmp_path / "train-0.tar", files)
    source = open_source(tmp_path)
    assert rows(source, "train") == [(0, "0", "a.jpg", b"1")]
    assert sorted(source.ignored.examples) == [
        "train-0.tar/README",
        "train-0.tar/a.seg.png",
        "train-0.tar/a.txt",
    ]


def test_a_compressed_tar_among_them_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", SAMPLES[:3])
    other = write(tmp_path / "train-1.tar", SAMPLES[3:])
    (tmp_path / "train-1.tar.gz").write_bytes(gzip.compress(other.read_bytes()))
    other.unlink()
    assert re.search(r"train-1\.tar\.gz.*gunzip", refusal(tmp_path))


def test_a_cut_tar_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", SAMPLES[:3])
    tar = write(tmp_path / "train-1.tar", SAMPLES[3:])
    whole = tar.read_bytes()
    for length in (100, 512 * 5, len(whole.rstrip(b"\0"))):
        tar.write_bytes(whole[:length])
        assert str(tar) in refusal(tmp_path)
