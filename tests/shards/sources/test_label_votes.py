"""Labels of images: right by ImageNet's own records, and a contradiction is never passed over."""

import gzip
import hashlib
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from accelssl.errors import UserError
from accelssl.shards.sources.devkit import read_devkit
from accelssl.shards.sources.ilsvrc2012 import (
    imagenet_classes,
    imagenet_val_wnids,
    in100_wnids,
)
from accelssl.shards.sources.image_name import parse_name, with_appended
from accelssl.shards.sources.open_source import open_source
from tests.shards.sources.test_ilsvrc2012 import unpack_devkit

SHARED = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
FACTS = SHARED / "facts"
DEVKIT = SHARED / "ilsvrc_fixture" / "ILSVRC2012_devkit_t12.tar.gz"
needs_facts = pytest.mark.skipif(not FACTS.exists(), reason="needs the facts about ImageNet")
needs_devkit = pytest.mark.skipif(not DEVKIT.exists(), reason="needs the devkit of ILSVRC2012")

TENCH, SNAKE, ALP = "n01440764", "n01751748", "n09193705"


def put(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def put_devkit(folder: Path, ids: dict[int, str], truth: list[int]) -> Path:
    """A devkit in small, with an inner node of the hierarchy after its classes."""
    rows = [(n, wnid, 0) for n, wnid in ids.items()] + [(len(ids) + 1, "n00001740", 2)]
    synsets = np.array(
        rows, dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    ).reshape(-1, 1)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    savemat(folder / "data" / "meta.mat", {"synsets": synsets})
    lines = "".join(f"{n}\n" for n in truth)
    (folder / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    return folder


def wnid_by_name(source: Path, **options: Path) -> dict[str, str]:
    opened = open_source(source, **options)  # type: ignore[arg-type]
    images = [opened.image("val", i) for i in range(opened.count("val"))]
    assert all(opened.classes[im.label] == im.wnid for im in images)
    return {im.name: im.wnid for im in images}


def refusal(source: Path, **options: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert caught.value.remedy
    return str(caught.value)


def train_of(root: Path, *wnids: str) -> Path:
    for wnid in wnids:
        put(root / "train" / wnid / f"{wnid}_1.JPEG")
    return root


def test_the_shipped_classes_are_imagenet() -> None:
    classes = imagenet_classes()
    assert list(classes) == sorted(classes)
    assert len(classes) == 1000
    assert sorted(c.ilsvrc2012_id for c in classes.values()) == list(range(1, 1001))
    assert sum(c.train_images for c in classes.values()) == 1_281_167
    assert {c.train_images for c in classes.values()} <= set(range(732, 1301))
    assert sum(c.train_images == 1300 for c in classes.values()) == 895
    assert classes[TENCH] == (449, 1300)


def test_the_shipped_validation_labels_are_imagenet() -> None:
    wnids = imagenet_val_wnids()
    assert wnids[:4] == (SNAKE, ALP, "n02105855", "n04263257")
    counts = np.unique(np.array(wnids), return_counts=True)
    assert counts[0].tolist() == list(imagenet_classes())
    assert set(counts[1].tolist()) == {50}
    text = "\n".join(wnids)
    assert hashlib.sha256(text.encode()).hexdigest() == VAL_SHA256


VAL_SHA256 = "2707a43f27dcd55fef87fbef0730966cb91c3aba99eb0c9e6f021217a553a3b1"
IN100_SHA256 = "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"


def test_the_shipped_in100_is_a_hundred_of_its_classes() -> None:
    names = in100_wnids()
    assert (len(names), list(names)) == (100, sorted(set(names)))
    assert set(names) <= imagenet_classes().keys()
    assert hashlib.sha256("\n".join(names).encode()).hexdigest() == IN100_SHA256


@needs_facts
def test_the_shipped_data_agrees_with_the_facts() -> None:
    lines = (FACTS / "in1k_names.tsv").read_text().splitlines()[1:]
    told = {c[1]: (int(c[2]), int(c[3])) for c in (line.split("\t") for line in lines)}
    assert imagenet_classes() == told
    labels = gzip.decompress((FACTS / "in1k_val_labels.txt.gz").read_bytes()).decode().split("\n")
    by_name = dict(line.split()[:2] for line in labels if line)
    shipped = {f"ILSVRC2012_val_{n:08d}.JPEG": w for n, w in enumerate(imagenet_val_wnids(), 1)}
    assert shipped == by_name
    assert set(in100_wnids()) == set((FACTS / "in100_cmc.txt").read_text().split())


@needs_devkit
@pytest.mark.parametrize("form", ["tar.gz", "folder", "folder around it", "tar"])
def test_the_real_devkit_agrees_with_the_shipped_labels(tmp_path: Path, form: str) -> None:
    devkit = DEVKIT
    if form.startswith("folder"):
        unpack_devkit(tmp_path)
        devkit = tmp_path / "ILSVRC2012_devkit_t12" if form == "folder" else tmp_path
    elif form == "tar":
        devkit = tmp_path / "ILSVRC2012_devkit_t12.tar"
        devkit.write_bytes(gzip.decompress(DEVKIT.read_bytes()))
    assert read_devkit(devkit) == imagenet_val_wnids()


@needs_devkit
@pytest.mark.parametrize("length", [0, 10, 1000, 200_000, 2_000_000])
def test_a_cut_devkit_is_refused(tmp_path: Path, length: int) -> None:
    cut = tmp_path / "ILSVRC2012_devkit_t12.tar.gz"
    cut.write_bytes(DEVKIT.read_bytes()[:length])
    train_of(tmp_path, TENCH)
    assert f"The devkit {cut} is damaged" in refusal(tmp_path)


def test_an_id_of_the_devkit_is_no_position_among_the_sorted_names(tmp_path: Path) -> None:
    ids = {1: ALP, 2: TENCH, 3: SNAKE}
    folder = put_devkit(tmp_path / "kit", ids, [2, 3, 1, 2])
    assert read_devkit(folder) == (TENCH, SNAKE, ALP, TENCH)


@pytest.mark.parametrize("line", ["0", "4", "9", "-1", "x", "", "1.0"])
def test_a_devkit_with_a_line_that_is_no_class_is_refused(tmp_path: Path, line: str) -> None:
    folder = put_devkit(tmp_path / "kit", {1: ALP, 2: TENCH, 3: SNAKE}, [1])
    truth = folder / "data" / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text(f"1\n{line}\n2\n")
    with pytest.raises(UserError, match=re.escape(f"Line 2 of data/{truth.name}")) as caught:
        read_devkit(folder)
    assert repr(line) in str(caught.value)


def test_a_devkit_without_its_files_or_with_other_ones_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no data/meta\.mat and no data/ILSVRC2012_val"):
        read_devkit(tmp_path / "empty")
    folder = put_devkit(tmp_path / "kit", {1: ALP}, [1])
    (folder / "data" / "meta.mat").write_bytes(b"no matrix")
    with pytest.raises(UserError, match=r"meta\.mat in .*kit is damaged"):
        read_devkit(folder)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_devkit_labels_what_the_package_knows_nothing_of(tmp_path: Path, is_given: bool) -> None:
    # More images than ILSVRC2012 has, so that the shipped list cannot help out.
    root = train_of(tmp_path / "in", TENCH, ALP)
    put(root / "val" / "ILSVRC2012_val_00050002.JPEG")
    labels = [*imagenet_val_wnids(), ALP, TENCH]
    ids = dict(enumerate(reversed(imagenet_classes()), start=1))
    id_of = {wnid: n for n, wnid in ids.items()}
    name = "elsewhere" if is_given else "in/ILSVRC2012_devkit_t12"
    kit = put_devkit(tmp_path / name, ids, [id_of[wnid] for wnid in labels])
    options = {"devkit": kit} if is_given else {}
    assert wnid_by_name(root, **options) == {"ILSVRC2012_val_00050002.JPEG": TENCH}
    opened = open_source(root, **options)  # type: ignore[arg-type]
    assert opened.classes == (TENCH, ALP)  # the devkit's folder is no class
    assert opened.ignored.count == 0


def test_a_devkit_beside_class_folders_is_no_class(tmp_path: Path) -> None:
    for wnid in (TENCH, ALP):
        put(tmp_path / wnid / "0.JPEG")
    put_devkit(tmp_path / "ILSVRC2012_devkit_t12", {1: ALP}, [1])
    assert open_source(tmp_path).classes == (TENCH, ALP)


def test_each_thing_that_tells_the_class_is_enough(tmp_path: Path) -> None:
    root = train_of(tmp_path, TENCH, SNAKE, ALP)
    put(root / "val" / "ILSVRC2012_val_00000001.JPEG")  # the package's list
    put(root / "val" / f"ILSVRC2012_val_00050009_{ALP}.JPEG")  # the name's end
    put(root / "val" / TENCH / "ILSVRC2012_val_00050010.JPEG")  # the folder
    put(root / "val" / f"{TENCH}_7.JPEG")  # the name's beginning
    assert wnid_by_name(root) == {
        "ILSVRC2012_val_00000001.JPEG": SNAKE,
        "ILSVRC2012_val_00050009.JPEG": ALP,
        "ILSVRC2012_val_00050010.JPEG": TENCH,
        f"{TENCH}_7.JPEG": TENCH,
    }


@pytest.mark.parametrize("number", [0, 50_001, 99_999_999])
def test_a_number_outside_the_validation_set_tells_no_class(tmp_path: Path, number: int) -> None:
    root = train_of(tmp_path, *sorted({imagenet_val_wnids()[0], imagenet_val_wnids()[-1]}))
    put(root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
    assert f"of an unknown class: ILSVRC2012_val_{number:08d}.JPEG" in refusal(root)


def test_a_folder_in_words_is_the_class_whatever_its_images_are_called(tmp_path: Path) -> None:
    put(tmp_path / "train" / "fish" / f"{TENCH}_1.JPEG")
    put(tmp_path / "train" / "snake" / f"{SNAKE}_1.JPEG")
    put(tmp_path / "val" / "snake" / "ILSVRC2012_val_00000001.JPEG")
    assert wnid_by_name(tmp_path) == {"ILSVRC2012_val_00000001.JPEG": "snake"}


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        (f"train/{TENCH}/{ALP}_1.JPEG", f"{TENCH} by its folder", f"{ALP} by the beginning"),
        (f"train/{TENCH}/{TENCH}_1_{ALP}.JPEG", f"{ALP} by its name", f"{TENCH} by its folder"),
        (f"train/{TENCH}_1_{ALP}.JPEG", f"{ALP} by its name", f"{TENCH} by the beginning"),
        (
            f"val/{TENCH}/ILSVRC2012_val_00000002.JPEG",
            f"{TENCH} by its folder",
            f"{ALP} by ImageNet's validation list",
        ),
        (
            f"val/ILSVRC2012_val_00000002_{TENCH}.JPEG",
            f"{TENCH} by its name",
            f"{ALP} by ImageNet's validation list",
        ),
    ],
)
def test_all_votes_for_an_image_must_agree(tmp_path: Path, path: str, one: str, other: str) -> None:
    train_of(tmp_path, TENCH, ALP)
    put(tmp_path / path)
    message = refusal(tmp_path)
    assert re.search(rf"disagree for 1 image, first for {re.escape(path)}: ", message)
    assert one in message
    assert other in message


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (0, "has 0 lines, but 3 validation images have numbers beyond that, up to 4"),
        (2, "has 2 lines, but 2 validation images have numbers beyond that, up to 4"),
        (3, "has 3 lines, but 1 validation image has a number beyond that, up to 4"),
        (4, None),
    ],
)
@pytest.mark.parametrize("is_flat", [True, False])
def test_a_devkit_that_ends_before_the_last_validation_image_is_refused(
    tmp_path: Path, lines: int, told: str | None, is_flat: bool
) -> None:
    wnids = imagenet_val_wnids()[:4]
    root = train_of(tmp_path / "in", *wnids)
    for number in (4, 1, 3):
        folder = root / "val" if is_flat else root / "val" / wnids[number - 1]
        put(folder / f"ILSVRC2012_val_{number:08d}.JPEG")
    kit = put_devkit(tmp_path / "kit", dict(enumerate(wnids, start=1)), [1, 2, 3, 4][:lines])
    if told is None:
        assert len(wnid_by_name(root, devkit=kit)) == 3
    else:
        file = "data/ILSVRC2012_validation_ground_truth.txt"
        assert f"{file} in {kit} {told}." in refusal(root, devkit=kit)


def test_the_devkit_must_agree_with_the_shipped_labels_and_with_folders(tmp_path: Path) -> None:
    train_of(tmp_path, TENCH, SNAKE, ALP)
    for number in (3, 2, 1):
        put(tmp_path / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
    put_devkit(tmp_path / "ILSVRC2012_devkit_t12", {1: TENCH, 2: ALP, 3: "n02105855"}, [1, 2, 1])
    message = refusal(tmp_path)
    assert "disagree for 2 images" in message
    assert "first for val/ILSVRC2012_val_00000001.JPEG: " in message
    assert f"{TENCH} by the devkit, {SNAKE} by ImageNet's validation list" in message


def test_a_class_tar_with_images_of_another_class_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as inner:
        for name in (f"{ALP}_2.JPEG", f"{ALP}_1.JPEG", f"{TENCH}_1.JPEG"):
            inner.addfile(tarfile.TarInfo(name))
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as tar:
        member = tarfile.TarInfo(f"{TENCH}.tar")
        member.size = len(buffer.getvalue())
        tar.addfile(member, io.BytesIO(buffer.getvalue()))
    place = f"ILSVRC2012_img_train.tar/{TENCH}.tar/{ALP}_1.JPEG"
    assert re.search(rf"disagree for 2 images, first for {re.escape(place)}: ", refusal(tmp_path))


@pytest.mark.parametrize(
    ("file_name", "name", "wnid"),
    [
        ("n01440764_10026_n01440764.JPEG", "n01440764_10026.JPEG", "n01440764"),
        ("ILSVRC2012_val_00000001_n01751748.JPEG", "ILSVRC2012_val_00000001.JPEG", "n01751748"),
        ("n01440764_10026.JPEG", "n01440764_10026.JPEG", None),
        ("n01440764_n01440764.JPEG", "n01440764_n01440764.JPEG", None),
        ("cat_n01440764.JPEG", "cat_n01440764.JPEG", None),
        ("n01440764_1_n014407640.JPEG", "n01440764_1_n014407640.JPEG", None),
        ("n01440764_1_n01440764.tar.JPEG", "n01440764_1_n01440764.tar.JPEG", None),
        ("n01440764_\u0661_n01440764.JPEG", "n01440764_\u0661_n01440764.JPEG", None),
    ],
)
def test_an_appended_class_comes_off_and_goes_on_again(
    file_name: str, name: str, wnid: str | None
) -> None:
    parsed = parse_name(file_name)
    assert (parsed.name, parsed.appended_wnid) == (name, wnid)
    if wnid is not None:
        assert with_appended(parsed.name, wnid) == file_name
