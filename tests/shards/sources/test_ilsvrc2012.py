"""The official archives of ILSVRC2012, in small, and everything that people make of them."""

import csv
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.selection import Selection
from accelssl.shards.sources.source import Source

FIXTURE = (
    Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "ilsvrc_fixture"
).resolve()
needs_fixture = pytest.mark.skipif(
    not FIXTURE.exists(), reason="needs the archives of ILSVRC2012 in small"
)
TRAIN = FIXTURE / "ILSVRC2012_img_train.tar"
VAL = FIXTURE / "ILSVRC2012_img_val.tar"
DEVKIT = FIXTURE / "ILSVRC2012_devkit_t12.tar.gz"

Rows = dict[str, list[tuple[int, str, str, bytes]]]


def rows(source: Source) -> Rows:
    found: Rows = {}
    for split in source.splits:
        images = [source.image(split, i) for i in range(source.count(split))]
        found[split] = [(im.label, im.wnid, im.name, im.read()) for im in images]
    return found


def wnid_by_file(split: str) -> dict[str, str]:
    with (FIXTURE / "expected.tsv").open() as file:
        return {
            row["file"]: row["wnid"]
            for row in csv.DictReader(file, delimiter="\t")
            if row["split"] == split
        }


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every image by its file name: train/<wnid>.tar, train_flat/*, val_flat/*."""
    root = tmp_path_factory.mktemp("extracted")
    subprocess.run(["mkdir", root / "train", root / "train_flat", root / "val_flat"], check=True)
    subprocess.run(["tar", "-xf", TRAIN, "-C", root / "train"], check=True)
    for tar in (root / "train").iterdir():
        subprocess.run(["tar", "-xf", tar, "-C", root / "train_flat"], check=True)
    subprocess.run(["tar", "-xf", VAL, "-C", root / "val_flat"], check=True)
    return root


@pytest.fixture(scope="module")
def expected(extracted: Path) -> Rows:
    """What any packaging must give: from expected.tsv and what the tar program extracts."""
    wnids = sorted(set(wnid_by_file("train").values()))
    return {
        split: sorted(
            (wnids.index(wnid), wnid, name, (extracted / f"{split}_flat" / name).read_bytes())
            for name, wnid in wnid_by_file(split).items()
        )
        for split in ("train", "val")
    }


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def appended(name: str, wnid: str) -> str:
    return f"{Path(name).stem}_{wnid}.JPEG"


def official(root: Path, made: Path) -> None:
    for archive in (TRAIN, VAL, DEVKIT):
        link(root / archive.name, archive)


def without_devkit(root: Path, made: Path) -> None:
    link(root / TRAIN.name, TRAIN)
    link(root / VAL.name, VAL)


def unpack_devkit(folder: Path) -> None:
    with tarfile.open(DEVKIT) as tar:
        # Python 3.11.3 and older have no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(folder)


def with_devkit_folder(root: Path, made: Path) -> None:
    without_devkit(root, made)
    unpack_devkit(root)


def class_tars(root: Path, made: Path) -> None:
    link(root / "train", made / "train")
    link(root / "val", made / "val_flat")


def folders(root: Path, made: Path) -> None:
    for split in ("train", "val"):
        for name, wnid in wnid_by_file(split).items():
            link(root / split / wnid / name, made / f"{split}_flat" / name)


def flat_val(root: Path, made: Path) -> None:
    for name, wnid in wnid_by_file("train").items():
        link(root / "train" / wnid / name, made / "train_flat" / name)
    link(root / "val", made / "val_flat")
    link(root / DEVKIT.name, DEVKIT)


def hub_flat(root: Path, made: Path) -> None:
    for split in ("train", "val"):
        for name, wnid in wnid_by_file(split).items():
            link(root / split / appended(name, wnid), made / f"{split}_flat" / name)


def hub_tars(root: Path, made: Path) -> None:
    hub_flat(root / "unpacked", made)
    for tar, split, part in (
        ("train_images_0", "train", slice(0, None, 2)),
        ("train_images_1", "train", slice(1, None, 2)),
        ("val_images", "val", slice(None)),
    ):
        names = sorted((path.name for path in (root / "unpacked" / split).iterdir()), reverse=True)
        folder = root / "unpacked" / split
        subprocess.run(
            ["tar", "-C", folder, "-h", "-cf", root / f"{tar}.tar", *names[part]], check=True
        )


@needs_fixture
@pytest.mark.parametrize(
    "package",
    [
        official,
        without_devkit,
        with_devkit_folder,
        class_tars,
        folders,
        flat_val,
        hub_flat,
        hub_tars,
    ],
)
def test_every_image_has_its_class_name_and_bytes_in_every_packaging(
    tmp_path: Path, extracted: Path, expected: Rows, package: Callable[[Path, Path], None]
) -> None:
    package(tmp_path / "in", extracted)
    source = open_source(tmp_path / "in")
    assert rows(source) == expected
    assert (source.count("train"), source.count("val"), len(source.classes)) == (56, 40, 12)


@needs_fixture
def test_archives_may_be_named_one_by_one(extracted: Path, expected: Rows) -> None:
    assert rows(open_source(TRAIN)) == {"train": expected["train"]}
    assert rows(open_source(TRAIN, val=VAL)) == expected
    assert rows(open_source(TRAIN, val=VAL, devkit=DEVKIT)) == expected
    assert rows(open_source(TRAIN, val=extracted / "val_flat", devkit=DEVKIT)) == expected


@needs_fixture
def test_a_limit_chooses_the_same_in_archives_and_folders(tmp_path: Path, extracted: Path) -> None:
    folders(tmp_path / "in", extracted)
    limited = Selection(classes=("n03394916", "n03445777"), limit_per_class=4)
    found = rows(open_source(FIXTURE, selection=limited))
    assert found == rows(open_source(tmp_path / "in", selection=limited))
    assert {split: len(images) for split, images in found.items()} == {"train": 8, "val": 8}


def test_a_listing_of_imagenets_size_would_take_less_than_200_megabytes(tmp_path: Path) -> None:
    for name, images in (("few", 10), ("many", 10_000)):
        with (tmp_path / f"{name}.tar").open("wb") as file:
            for i in range(images):
                header = tarfile.TarInfo(f"n{i * 7919 % 1000:08d}_{i}.JPEG")
                file.write(header.tobuf(tarfile.USTAR_FORMAT))
            file.write(bytes(1024))
    few = open_source(tmp_path / "few.tar")  # loads what does not depend on the number of images
    tracemalloc.start()
    try:
        many = open_source(tmp_path / "many.tar")
        live_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (few.count("train"), many.count("train")) == (10, 10_000)
    assert live_bytes / 10_000 < 200e6 / 1.33e6
    assert peak_bytes / 10_000 < 300e6 / 1.33e6
