"""Sources with something amiss are refused by name; what is missing of ImageNet is noted."""

import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest

from accelssl.errors import UserError
from accelssl.shards.sources.open_source import open_source
from tests.shards.sources.packagings import (
    EXPECTED,
    TRAIN,
    WNIDS,
    class_tars,
    extracted,
    hub,
    hub_tars,
    of_class,
    official,
    pack,
    packed,
    put,
    rows,
)


def refusal(source: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert caught.value.remedy
    return str(caught.value)


def test_a_cut_train_archive_is_refused_by_name_wherever_it_ends(tmp_path: Path) -> None:
    tar = official(tmp_path) / "ILSVRC2012_img_train.tar"
    whole = tar.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in [0, 100, 512, 5000, len(whole) // 2, end - 10240 * 2, end]:
        tar.write_bytes(whole[:length])
        message = refusal(tmp_path)
        assert f"{tar} cannot be read as a tar archive: " in message  # not: a class tar in it
        assert "Download it again" in message


def test_a_damaged_class_tar_inside_is_refused_by_both_names(tmp_path: Path) -> None:
    damaged = bytearray(packed(of_class(WNIDS[1])))
    with tarfile.open(fileobj=io.BytesIO(bytes(damaged))) as tar:
        place = tar.getmembers()[2].offset
    damaged[place + 20] ^= 1
    pack(
        tmp_path / "ILSVRC2012_img_train.tar",
        {f"{WNIDS[0]}.tar": packed(of_class(WNIDS[0])), f"{WNIDS[1]}.tar": bytes(damaged)},
    )
    message = refusal(tmp_path)
    assert f"{WNIDS[1]}.tar in {tmp_path / 'ILSVRC2012_img_train.tar'} is damaged" in message
    assert f"header at byte {place}" in message
    put(tmp_path / "two" / "train" / f"{WNIDS[1]}.tar", bytes(damaged))
    message = refusal(tmp_path / "two")
    assert f"{tmp_path / 'two' / 'train' / WNIDS[1]}.tar cannot be read as a tar" in message


@pytest.mark.parametrize("name", ["train_images_1.tar.gz", "train_images_1.tgz"])
def test_a_compressed_part_is_refused_rather_than_left_out(tmp_path: Path, name: str) -> None:
    hub_tars(tmp_path)
    tar = tmp_path / "train_images_1.tar"
    (tmp_path / name).write_bytes(gzip.compress(tar.read_bytes()))
    assert rows(open_source(tmp_path)) == EXPECTED  # it is there unpacked as well
    tar.unlink()
    assert re.search(rf"{name}.*gunzip", refusal(tmp_path))


@pytest.mark.parametrize("name", ["ILSVRC2012_img_train.tar.gz", "train.tar.xz", "train.tgz"])
def test_a_compressed_archive_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, b"x")
    assert f"are compressed, so nothing in them can be read in place: {name}." in refusal(tmp_path)


def test_a_compressed_archive_is_refused_by_its_content(tmp_path: Path) -> None:
    tar = tmp_path / "imagenet.tar"
    tar.write_bytes(gzip.compress(packed(of_class(WNIDS[0]))))
    assert f"gunzip {tar}" in refusal(tar)


def test_an_image_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    hub_tars(tmp_path)
    pack(tmp_path / "train_images_7.tar", hub(TRAIN[:1]))
    message = refusal(tmp_path)
    assert f"{TRAIN[0][1]} of the class {TRAIN[0][0]} is there twice" in message
    assert "train_images_7.tar" in message
    twice = tmp_path / "twice"
    with tarfile.open(twice.with_suffix(".tar"), "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo(f"n01751748/{TRAIN[0][1]}"))
    assert f"twice, in {twice}.tar." in refusal(twice.with_suffix(".tar"))


def test_a_class_that_is_there_as_folder_and_as_tar_is_refused(tmp_path: Path) -> None:
    class_tars(tmp_path)
    put(tmp_path / "train" / WNIDS[2] / TRAIN[0][1], b"x")
    assert re.search(rf"1 classes .* as a folder and as a tar, first {WNIDS[2]}", refusal(tmp_path))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("is_nested", [True, False])
def test_an_image_that_is_a_link_in_a_tar_is_refused(
    tmp_path: Path, kind: bytes, is_nested: bool
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("n01751748_1.JPEG"))
        link = tarfile.TarInfo("n01751748_2.JPEG")
        link.type, link.linkname = kind, "n01751748_1.JPEG"
        tar.addfile(link)
    path = tmp_path / "train.tar"
    if is_nested:
        pack(path, {"n01751748.tar": buffer.getvalue()})
    else:
        path.write_bytes(buffer.getvalue())
    assert re.search(r"n01751748_2\.JPEG in .*train\.tar.* is a link", refusal(tmp_path))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["val/a/0.jpg"], "no folder named train"),
        (["ILSVRC2012_val_00000001.JPEG"], "no folder named train"),
        (
            ["train/a/0.jpg", "train/stray.jpg"],
            r"train has 1 images of an unknown class: str",
        ),
        (["train/0.jpg"], "train has no class folders, and it has 1 images .*: 0.jpg"),
        (["train/a/0.jpg", "val/9.jpg", "val/8.jpg"], r"2 images .*: 8\.jpg, 9\.jpg\."),
        (["train/a/0.jpg", "val/ILSVRC2012_val_00050001.JPEG"], "00050001"),
        (["train/a/0.jpg", "val/ILSVRC2012_val_00000000.JPEG"], "00000000"),
        (["train/n01751748/0.jpg", "val/ILSVRC2012_val_00000002.JPEG"], "lacks: n09193705"),
        (["train/n01751748/0.jpg", "train/n09193705/notes.txt"], "n09193705 has no images"),
    ],
)
def test_a_source_with_something_amiss_is_refused(
    tmp_path: Path, files: list[str], named: str
) -> None:
    for path in files:
        put(tmp_path / path, b"x")
    assert re.search(named, refusal(tmp_path))


def test_an_empty_class_of_a_tar_is_refused_too(tmp_path: Path) -> None:
    pack(tmp_path / "train.tar", {"n01751748.tar": packed({"readme": b""})})
    assert "n01751748 has no images" in refusal(tmp_path)
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a/1.jpg"))
        folder = tarfile.TarInfo("b")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    assert "b has no images" in refusal(tmp_path)


def test_a_val_or_source_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    extracted(tmp_path / "in")
    for options in ({"val": tmp_path / "nowhere"}, {"devkit": tmp_path / "nowhere"}):
        assert f"{tmp_path / 'nowhere'} cannot be read" in refusal(tmp_path / "in", **options)
    assert f"{tmp_path / 'nowhere'} cannot be read" in refusal(tmp_path / "nowhere")


def test_half_a_download_is_noticed(tmp_path: Path) -> None:
    (note,) = open_source(official(tmp_path)).notes
    assert "4 of 1,000 classes" in note
    assert "20 of 1,281,167 train images (n01751748 has 5 of 1300)" in note
    assert "4 of 50,000 val images (n01751748 has 1 of 50)" in note


def test_of_other_classes_nothing_is_said_to_be_missing(tmp_path: Path) -> None:
    for path in ("train/cat/0.jpg", "train/n01751748/0.jpg"):
        put(tmp_path / path, b"x")
    assert open_source(tmp_path).notes == ()
