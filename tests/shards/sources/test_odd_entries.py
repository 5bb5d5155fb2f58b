"""Odd entries of a source: pipes and links never stop it, and what changes or hides is said."""

import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from accelssl.errors import UserError
from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.source import Source, SourceChanged

TENCH, SNAKE = "n01440764", "n01751748"


def put(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def pack(path: Path, folder: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name in names:
            tar.add(folder / name, name)
    return path


def names(source: Source, split: str = "train") -> list[tuple[str, str]]:
    images = [source.image(split, i) for i in range(source.count(split))]
    return [(im.wnid, im.name) for im in images]


def refusal(source: Path, **options: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert caught.value.remedy
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_endless_read() -> Iterator[None]:
    """Ends a test that waits for a pipe, rather than the whole run."""

    def end(*_: object) -> None:
        raise AssertionError("it waits for something that never comes")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def two_classes(root: Path) -> Path:
    for wnid in (TENCH, SNAKE):
        put(root / "train" / wnid / f"{wnid}_1.JPEG", wnid.encode())
    return root


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket may have about 100 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parents[2] / "pipe")
    path.symlink_to(path.parents[2] / "pipe")


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


MAKE = [make_pipe, make_socket, make_link_to_pipe, make_link_to_device]


@pytest.mark.parametrize("make", MAKE)
def test_what_is_no_regular_file_is_no_image_but_counted(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    two_classes(tmp_path / "in")
    make(tmp_path / "in" / "train" / TENCH / "odd.jpg")
    source = open_source(tmp_path / "in")
    assert names(source) == [(TENCH, f"{TENCH}_1.JPEG"), (SNAKE, f"{SNAKE}_1.JPEG")]
    assert f"train/{TENCH}/odd.jpg" in source.ignored.examples


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("name", ["odd.jpg", "n00000001.tar"])
def test_nor_is_it_one_beside_class_folders(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    two_classes(tmp_path / "in")
    (tmp_path / "in" / "train" / "deep").mkdir()
    make(tmp_path / "in" / "train" / "deep" / name)
    (tmp_path / "in" / "train" / "deep" / name).rename(tmp_path / "in" / "train" / name)
    (tmp_path / "in" / "train" / "deep").rmdir()
    source = open_source(tmp_path / "in")
    assert source.classes == (TENCH, SNAKE)
    assert f"train/{name}" in source.ignored.examples


@pytest.mark.parametrize("name", ["train.tar", "ILSVRC2012_img_train.tar", "a-train.tar"])
def test_a_pipe_is_no_archive(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "has no folder named train" in refusal(tmp_path)
    two_classes(tmp_path)
    assert open_source(tmp_path).ignored.examples == [name]


def test_a_pipe_that_is_named_is_refused_by_name(tmp_path: Path) -> None:
    two_classes(tmp_path / "in")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link"):
        told = f"{path} is a pipe, socket or device."
        assert told in refusal(path)
        assert told in refusal(tmp_path / "in", val=path)
        assert told in refusal(tmp_path / "in", devkit=path)


def test_a_devkit_with_a_pipe_for_its_ground_truth_is_refused(tmp_path: Path) -> None:
    two_classes(tmp_path / "in")
    put(tmp_path / "kit" / "data" / "meta.mat")
    os.mkfifo(tmp_path / "kit" / "data" / "ILSVRC2012_validation_ground_truth.txt")
    assert "has no data/ILSVRC2012_validation_ground_truth.txt" in refusal(
        tmp_path / "in", devkit=tmp_path / "kit"
    )


@pytest.mark.parametrize("target", ["loop.jpg", "nowhere.jpg"])
def test_a_link_that_leads_nowhere_is_an_image_that_cannot_be_read(
    tmp_path: Path, target: str
) -> None:
    two_classes(tmp_path)
    (tmp_path / "train" / TENCH / "loop.jpg").symlink_to(target)
    (tmp_path / "train" / TENCH / "notes").symlink_to("notes")
    source = open_source(tmp_path)
    assert names(source)[0] == (TENCH, "loop.jpg")
    assert source.ignored.examples == [f"train/{TENCH}/notes"]
    with pytest.raises(OSError, match="symbolic links" if target == "loop.jpg" else "No such file"):
        source.image("train", 0).read()


@pytest.mark.parametrize("name", ["train.tar", "train_images_0.tar", f"train/{SNAKE}.tar"])
def test_an_archive_that_is_a_link_to_itself_is_refused_by_name(tmp_path: Path, name: str) -> None:
    if name.startswith("train/"):
        put(tmp_path / "train" / TENCH / "1.jpg")
    (tmp_path / name).symlink_to(tmp_path / name)
    assert f"{tmp_path / name} cannot be read: Too many levels" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["val", "source", "devkit"])
def test_a_named_link_to_itself_is_refused_by_name(tmp_path: Path, name: str) -> None:
    two_classes(tmp_path / "in")
    link = tmp_path / "loop"
    link.symlink_to(link)
    message = refusal(link) if name == "source" else refusal(tmp_path / "in", **{name: link})
    assert f"{link} cannot be read: Too many levels" in message


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    two_classes(tmp_path / "in")
    long = tmp_path / ("x" * 300)
    assert f"{long} cannot be read: File name too long" in refusal(long)
    assert f"{long} cannot be read: File name too long" in refusal(tmp_path / "in", val=long)


def replaced(tar: Path) -> None:
    other = tar.with_name("other")
    shutil.copy2(tar, other)
    other.replace(tar)


def touched(tar: Path) -> None:
    times = tar.stat()
    os.utime(tar, ns=(times.st_atime_ns, times.st_mtime_ns + 1))


def longer(tar: Path) -> None:
    times = tar.stat()
    with tar.open("ab") as file:
        file.write(bytes(512))
    os.utime(tar, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut(tar: Path) -> None:
    os.truncate(tar, 600)


def packed_source(root: Path, form: str) -> tuple[Path, Path]:
    """A source in a tar of that form, and that tar."""
    folder = two_classes(root / "files") / "train"
    if form == "class folders":
        tar = pack(root / "in" / "train.tar", folder, TENCH, SNAKE)
    elif form == "class tar":
        tar = pack(root / "in" / "train" / f"{TENCH}.tar", folder / TENCH, f"{TENCH}_1.JPEG")
    else:
        put(folder / "a.jpg")
        put(folder / "a.cls", b"0")
        tar = pack(root / "in" / "train-0.tar", folder, "a.jpg", "a.cls")
    return root / "in", tar


@pytest.mark.parametrize("change", [replaced, touched, longer, cut])
@pytest.mark.parametrize("form", ["class folders", "class tar", "samples"])
def test_an_archive_that_is_not_the_one_that_was_listed_is_not_read(
    tmp_path: Path, form: str, change: Callable[[Path], None]
) -> None:
    root, tar = packed_source(tmp_path, form)
    image = open_source(root).image("train", 0)
    copy = pickle.loads(pickle.dumps(image))
    assert copy.read() == image.read()
    change(tar)
    for each in (image, copy):
        with pytest.raises(SourceChanged) as caught:
            each.read()
        assert str(caught.value).startswith(f"The source {tar} changed while it was read. Put it ")
    if change is not cut:
        open_source(root).image("train", 0).read()  # listed anew, it is the source


def test_that_an_archive_changed_is_told_by_worker_processes_too(tmp_path: Path) -> None:
    root, tar = packed_source(tmp_path, "class folders")
    image = open_source(root).image("train", 1)
    touched(tar)
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(SourceChanged) as caught,
    ):
        pool.submit(image.read).result()
    assert (caught.value.what, caught.value.remedy) == (
        f"The source {tar} changed while it was read.",
        "Put it back and run the same command again, or start anew in another folder.",
    )


DEEP = ["a/sub/1.jpg", "a/sub/deeper/2.PNG", "b/more/3.jpg"]
NOT_DEEP = ["a/0.jpg", "b/0.jpg", "a/sub/notes.txt", "a/sub/.hidden/4.jpg", "a/.trash/5.jpg"]


@pytest.mark.parametrize("is_packed", [True, False])
def test_images_that_lie_too_deep_are_counted_exactly_and_named(
    tmp_path: Path, is_packed: bool
) -> None:
    for path in DEEP + NOT_DEEP:
        put(tmp_path / "in" / "train" / path)
    root, first = tmp_path / "in", "train/a/sub/1.jpg"
    if is_packed:
        root = pack(tmp_path / "all.tar", tmp_path / "in", *(f"train/{p}" for p in DEEP + NOT_DEEP))
        first = f"all.tar/{first}"
    source = open_source(root)
    assert names(source) == [("a", "0.jpg"), ("b", "0.jpg")]
    assert source.notes == (
        f"3 images lie deeper than train/<class>/ or val/<class>/ and are not read, first {first}.",
    )


def test_of_a_class_tar_too_they_are_counted(tmp_path: Path) -> None:
    for path in ("1.jpg", "sub/2.jpg", f"{TENCH}/3.jpg", f"{TENCH}/sub/4.jpg", ".trash/5.jpg"):
        put(tmp_path / "files" / path)
    pack(
        tmp_path / "in" / "train" / f"{TENCH}.tar",
        tmp_path / "files",
        "1.jpg",
        TENCH,
        "sub",
        ".trash",
    )
    source = open_source(tmp_path / "in")
    assert names(source) == [(TENCH, "1.jpg"), (TENCH, "3.jpg")]
    assert source.notes[0] == (
        "2 images lie deeper than train/<class>/ or val/<class>/ and are not read, first "
        f"train/{TENCH}.tar/{TENCH}/sub/4.jpg."
    )


def test_a_folder_around_the_classes_is_told_where_nothing_is_found(tmp_path: Path) -> None:
    put(tmp_path / "files" / "imagenet" / TENCH / "x.JPEG")
    pack(tmp_path / "train.tar", tmp_path / "files", f"imagenet/{TENCH}/x.JPEG")
    message = refusal(tmp_path)
    assert "has no class folders. 1 image lies deeper than" in message
    assert f"is not read, first train.tar/imagenet/{TENCH}/x.JPEG." in message
    put(tmp_path / "two" / "train" / "imagenet" / TENCH / "x.JPEG")
    message = refusal(tmp_path / "two")
    assert "train/imagenet has no images. 1 image lies deeper" in message
    assert f"first train/imagenet/{TENCH}/x.JPEG." in message


def test_a_linked_folder_in_a_class_is_counted_but_not_one_that_leads_back(tmp_path: Path) -> None:
    two_classes(tmp_path / "in")
    put(tmp_path / "elsewhere" / "1.jpg")
    put(tmp_path / "elsewhere" / "2.jpg")
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "train" / TENCH / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "train" / TENCH / "back").symlink_to(tmp_path / "in" / "train")
    source = open_source(tmp_path / "in")
    assert source.count("train") == 2
    assert re.match(rf"2 images lie deeper .* first train/{TENCH}/linked/1\.jpg", source.notes[0])


@pytest.mark.parametrize("other", [TENCH, SNAKE])
def test_a_class_appended_to_a_name_in_a_folder_of_words_is_a_part_of_the_name(
    tmp_path: Path, other: str
) -> None:
    files = [f"{TENCH}_0.JPEG", f"{TENCH}_0_{TENCH}.JPEG", f"ILSVRC2012_val_00050009_{other}.JPEG"]
    for name in files:
        put(tmp_path / "in" / "train" / "tench" / name, name.encode())
    pack(tmp_path / "train.tar", tmp_path / "in" / "train", "tench")
    for path in (tmp_path / "in", tmp_path / "train.tar"):
        source = open_source(path)
        images = [source.image("train", i) for i in range(source.count("train"))]
        assert [(im.wnid, im.name) for im in images] == [("tench", name) for name in sorted(files)]
        assert [im.read() for im in images] == [name.encode() for name in sorted(files)]


def test_a_file_with_an_appended_class_is_found_though_its_class_is_renamed(tmp_path: Path) -> None:
    # Samples without wnids give all classes the names of labels, also those of val's folder.
    for name, data in {
        "a.jpg": b"a",
        "a.cls": b"7",
        "a.json": f'{{"wnid": "{TENCH}"}}'.encode(),
        "b.jpg": b"b",
        "b.cls": b"12",
    }.items():
        put(tmp_path / "files" / name, data)
    samples = ("a.jpg", "a.cls", "a.json", "b.jpg", "b.cls")
    pack(tmp_path / "in" / "train-0.tar", tmp_path / "files", *samples)
    put(tmp_path / "val" / TENCH / f"{TENCH}_3_{TENCH}.JPEG", b"the image")
    source = open_source(tmp_path / "in", val=tmp_path / "val")
    assert (source.classes, names(source, "val")) == (("07", "12"), [("07", f"{TENCH}_3.JPEG")])
    assert source.image("val", 0).read() == b"the image"


def test_a_class_folder_that_is_a_broken_link_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "in" / "train" / SNAKE / "1.jpg")
    (tmp_path / "in" / "train" / TENCH).symlink_to(tmp_path / "gone")
    assert f"The class folder {tmp_path / 'in' / 'train' / TENCH} is a link that" in refusal(
        tmp_path / "in"
    )


def test_a_split_that_is_a_link_is_read_and_not_said_to_be_unread(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "train" / TENCH / "1.JPEG")
    put(tmp_path / "source" / "notes.txt")
    (tmp_path / "source" / "train").symlink_to(tmp_path / "elsewhere" / "train")
    source = open_source(tmp_path / "source")
    assert names(source) == [(TENCH, "1.JPEG")]
    assert source.ignored.examples == ["notes.txt"]
