"""Sources: the same images are the same listing, however they are packed; nothing is lost."""

import os
import pickle
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.source import SourceChanged
from tests.shards.sources.packagings import (
    EXPECTED,
    TRAIN,
    VAL,
    WNIDS,
    class_tars,
    content,
    extracted,
    hub,
    hub_tars,
    of_class,
    official,
    pack,
    packed,
    put,
    put_train_folders,
    put_val_folders,
    rows,
    shuffled,
)


def put_val_flat(root: Path) -> None:
    for _, name in VAL:
        put(root / name, content(name))


def flat_val(root: Path) -> Path:
    put_train_folders(root / "train")
    put_val_flat(root / "val")
    return root


def kaggle(root: Path) -> Path:
    flat_val(root / "ILSVRC" / "Data" / "CLS-LOC")
    put(root / "ILSVRC" / "Data" / "CLS-LOC" / "test" / "ILSVRC2012_test_00000001.JPEG", b"test")
    put(root / "LOC_val_solution.csv", b"ImageId,PredictionString")
    return root


def inside_kaggle(root: Path) -> Path:
    return kaggle(root) / "ILSVRC"


def half_extracted(root: Path) -> Path:
    for wnid in WNIDS[:2]:
        pack(root / "train" / f"{wnid}.tar", of_class(wnid))
    for wnid, name in TRAIN:
        if wnid not in WNIDS[:2]:
            put(root / "train" / wnid / name, content(name))
    for i, (wnid, name) in enumerate(VAL):  # interrupted while sorting val into folders
        put(root / "val" / (wnid if i % 2 else "") / name, content(name))
    return root


def moved_into_folders(root: Path) -> Path:
    made = official(root)
    for split in ("train", "val"):
        (root / split).mkdir()
        (made / f"ILSVRC2012_img_{split}.tar").rename(root / split / f"ILSVRC2012_img_{split}.tar")
    return root


def hub_flat(root: Path) -> Path:
    for split, images in (("train", TRAIN), ("val", VAL)):
        for name, data in hub(images).items():
            put(root / split / name, data)
    return root


def hub_tars_in_data(root: Path) -> Path:
    hub_tars(root / "data")
    put(root / "README.md", b"about")
    return root


def hub_part_folders(root: Path) -> Path:
    for n in range(3):
        for name, data in hub(shuffled(TRAIN)[n::3]).items():
            put(root / "train" / f"train_images_{n}" / name, data)
    for name, data in hub(VAL).items():
        put(root / "val_images" / name, data)
    return root


def one_tar(root: Path) -> Path:
    files = {f"./train/{wnid}/{name}": content(name) for wnid, name in shuffled(TRAIN)}
    files |= {f"./val/{wnid}/{name}": content(name) for wnid, name in shuffled(VAL)}
    return pack(root / "imagenet.tar", files)


def tars_of_folders(root: Path) -> Path:
    pack(root / "train.tar", {f"train/{w}/{name}": content(name) for w, name in shuffled(TRAIN)})
    pack(root / "val.tar", {f"{w}/{name}": content(name) for w, name in shuffled(VAL)})
    return root


PACKAGINGS = [
    official,
    extracted,
    flat_val,
    kaggle,
    inside_kaggle,
    class_tars,
    half_extracted,
    moved_into_folders,
    hub_flat,
    hub_tars,
    hub_tars_in_data,
    hub_part_folders,
    one_tar,
    tars_of_folders,
]


@pytest.mark.parametrize("package", PACKAGINGS)
def test_the_same_images_are_the_same_listing_in_every_packaging(
    tmp_path: Path, package: Callable[[Path], Path]
) -> None:
    source = open_source(package(tmp_path / "in"))
    assert source.classes == tuple(WNIDS)
    assert source.splits == ("train", "val")
    assert rows(source) == EXPECTED
    assert source.options == {}


def test_a_train_archive_takes_val_from_where_it_is_said_to_be(tmp_path: Path) -> None:
    root = official(tmp_path / "in")
    train = root / "ILSVRC2012_img_train.tar"
    alone = open_source(train)
    assert rows(alone) == {"train": EXPECTED["train"]}
    put_val_flat(tmp_path / "flat")
    put_val_folders(tmp_path / "folders")
    for val in (root / "ILSVRC2012_img_val.tar", tmp_path / "flat", tmp_path / "folders", root):
        assert rows(open_source(train, val=val)) == EXPECTED


def test_class_folders_without_train_are_all_train(tmp_path: Path) -> None:
    for path in ("cat/b.png", "cat/a.jpg", "dog/c.webp", "dog/._c.webp", "notes.txt"):
        put(tmp_path / "in" / path, content(path))
    put(tmp_path / "elsewhere" / "dog" / "d.jpg", b"d")
    source = open_source(tmp_path / "in")
    assert source.classes == ("cat", "dog")
    assert [row[:3] for row in rows(source)["train"]] == [
        (0, "cat", "a.jpg"),
        (0, "cat", "b.png"),
        (1, "dog", "c.webp"),
    ]
    assert (source.splits, source.ignored.count) == (("train",), 2)
    with_val = open_source(tmp_path / "in", val=tmp_path / "elsewhere")
    assert rows(with_val)["val"] == [(1, "dog", "d.jpg", b"d")]


def test_val_inside_a_folder_of_classes_is_no_class_if_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("cat/a.jpg", "dog/c.jpg", "held_out/dog/d.jpg"):
        put(tmp_path / "in" / path, b"x")
    monkeypatch.chdir(tmp_path)
    for val in (tmp_path / "in" / "held_out", Path("in/held_out")):
        source = open_source(tmp_path / "in", val=val)
        assert source.classes == ("cat", "dog")
        assert (source.count("train"), source.count("val")) == (2, 1)


@pytest.mark.parametrize("val", ["val", "val.tar", "ILSVRC2012_img_val.tar"])
def test_val_beside_class_folders_is_val(tmp_path: Path, val: str) -> None:
    put_train_folders(tmp_path)
    if val == "val":
        put_val_flat(tmp_path / val)
    else:
        pack(tmp_path / val, {name: content(name) for _, name in VAL})
    assert rows(open_source(tmp_path)) == EXPECTED


def test_files_of_flat_train_are_classed_by_their_names(tmp_path: Path) -> None:
    for _, name in TRAIN:
        put(tmp_path / "in" / name, content(name))
    assert rows(open_source(tmp_path / "in"))["train"] == EXPECTED["train"]


def test_an_appended_class_is_only_taken_off_names_of_imagenet(tmp_path: Path) -> None:
    for name in ("holiday_n01751748.jpg", "n01751748_1_n01751748.jpg"):
        put(tmp_path / "in" / "train" / "n01751748" / name, name.encode())
    found = rows(open_source(tmp_path / "in"))["train"]
    assert [(name, data) for _, _, name, data in found] == [
        ("holiday_n01751748.jpg", b"holiday_n01751748.jpg"),
        ("n01751748_1.jpg", b"n01751748_1_n01751748.jpg"),
    ]


@pytest.mark.parametrize("package", [extracted, official])
def test_an_image_travels_between_processes_and_stays_small(
    tmp_path: Path, package: Callable[[Path], Path]
) -> None:
    source = open_source(package(tmp_path))
    image = source.image("train", 3)
    copy = pickle.loads(pickle.dumps(image))
    assert copy == image
    assert copy.read() == EXPECTED["train"][3][3]
    assert not hasattr(image, "__dict__")
    with pytest.raises(AttributeError):
        image.label = 1  # type: ignore[misc]


def test_an_image_is_read_whole_where_reads_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(official(tmp_path))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: pread(fd, min(n, 100), offset))
    assert rows(source) == EXPECTED


def test_an_image_of_a_tar_that_was_cut_since_is_an_error(tmp_path: Path) -> None:
    source = open_source(official(tmp_path))
    tar = tmp_path / "ILSVRC2012_img_train.tar"
    tar.write_bytes(tar.read_bytes()[:3000])
    with pytest.raises(SourceChanged, match=re.escape(f"The source {tar} changed")):
        source.image("train", source.count("train") - 1).read()


def test_what_is_no_image_is_counted_in_tars_as_in_folders(tmp_path: Path) -> None:
    wnid = WNIDS[0]
    extra = {"readme.txt": b"x", f"._{wnid}_1.JPEG": b"x", "deep/inside.jpg": b"x"}
    class_tar = packed({**of_class(wnid), **extra})
    pack(
        tmp_path / "ILSVRC2012_img_train.tar",
        {
            f"{wnid}.tar": class_tar,
            "notes.txt": b"x",
            "._n09193705.tar": b"x",
            ".trash/1.jpg": b"x",
        },
    )
    put(tmp_path / ".DS_Store", b"x")
    source = open_source(tmp_path)
    assert source.count("train") == 5
    tar = "ILSVRC2012_img_train.tar"
    assert sorted(source.ignored.examples) == [
        ".DS_Store",
        f"{tar}/._n09193705.tar",
        f"{tar}/.trash/1.jpg",
        f"{tar}/{wnid}.tar/._{wnid}_1.JPEG",
        f"{tar}/{wnid}.tar/deep/inside.jpg",
        f"{tar}/{wnid}.tar/readme.txt",
        f"{tar}/notes.txt",
    ]
    assert source.ignored.count == 7


def test_a_class_tar_may_hold_its_images_in_a_folder_of_its_name(tmp_path: Path) -> None:
    for wnid in WNIDS:
        files = {f"./{wnid}/{name}": data for name, data in of_class(wnid).items()}
        pack(tmp_path / "train" / f"{wnid}.tar", files)
    assert rows(open_source(tmp_path)) == {"train": EXPECTED["train"]}
    alone = open_source(tmp_path / "train" / f"{WNIDS[0]}.tar")
    assert rows(alone)["train"] == EXPECTED["train"][:5]


def test_a_tar_may_hold_everything_in_a_folder_of_its_name(tmp_path: Path) -> None:
    for tar, images in (("ILSVRC2012_img_train", TRAIN), ("ILSVRC2012_img_val", VAL)):
        files = {f"{tar}/{wnid}/{name}": content(name) for wnid, name in images}
        with tarfile.open(pack(tmp_path / f"{tar}.tar", files), "a") as archive:
            for folder in (tar, f"{tar}/{WNIDS[0]}", "."):
                member = tarfile.TarInfo(folder)
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
    assert rows(open_source(tmp_path)) == EXPECTED


def test_archives_left_beside_what_was_extracted_from_them_are_not_read(tmp_path: Path) -> None:
    flat_val(tmp_path)
    for split in ("train", "val"):
        pack(tmp_path / split / f"ILSVRC2012_img_{split}.tar", {"n00000001.tar": packed({})})
    source = open_source(tmp_path)
    assert rows(source) == EXPECTED
    assert source.ignored.examples == [
        "train/ILSVRC2012_img_train.tar",
        "val/ILSVRC2012_img_val.tar",
    ]


def test_what_lies_beside_an_archive_in_the_folder_of_its_split_is_counted(tmp_path: Path) -> None:
    moved_into_folders(tmp_path)
    put(tmp_path / "train" / "notes.txt", b"x")
    source = open_source(tmp_path)
    assert rows(source) == EXPECTED
    assert source.ignored.examples == ["train/notes.txt"]


def test_an_archive_that_is_passed_by_is_said_so(tmp_path: Path) -> None:
    extracted(tmp_path)
    pack(tmp_path / "ILSVRC2012_img_train.tar", {"n00000001.tar": packed({"a.jpg": b"x"})})
    pack(tmp_path / "ILSVRC2012_img_train_t3.tar", {"n00000002.tar": packed({"a.jpg": b"x"})})
    source = open_source(tmp_path)
    assert rows(source) == EXPECTED
    assert source.ignored.count == 2
    assert re.search(r"Not read.*img_train\.tar, .*img_train_t3\.tar", source.notes[0])


def test_progress_counts_up_to_all_images(tmp_path: Path) -> None:
    names = {f"n01751748_{i}.JPEG": b"" for i in range(2500)}
    pack(tmp_path / "train.tar", names)
    seen: list[int] = []
    open_source(tmp_path, on_listed=seen.append)
    assert seen == [1000, 2000, 2500]


def test_names_that_are_no_text_are_found_again(tmp_path: Path) -> None:
    name = b"\xff\xfe.jpg".decode(errors="surrogateescape")
    pack(tmp_path / "train.tar", {f"only/{name}": b"data"})
    image = open_source(tmp_path).image("train", 0)
    assert (image.name, image.read()) == (name, b"data")
