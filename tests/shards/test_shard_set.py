"""Shard sets read back as they were written, alike for all readers, and refuse what changed."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards
from accelssl.shards.write.shard_imagenet import shard_images

CLASSES = ("n01", "n02", "n03")


def smooth_picture(seed: int, width: int = 48, height: int = 40) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    # Sizes that leave every remainder of a tar block.
    smooth_picture(seed, 40 + seed % 23, 40).save(buffer, "JPEG", quality=80 + seed % 15)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for split, per_class in (("train", 7), ("val", 3)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                seed = (label * 100 + i) * 2 + (split == "val")
                (folder / f"{name}_{i}.JPEG").write_bytes(jpeg(seed))
    return root


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    shard_images(source, tmp_path / "set", samples_per_shard=8, workers=1)
    return tmp_path / "set"


def everything(out: Path, split: str) -> list[tuple[bytes, int]]:
    opened = open_shards(out).split(split)
    return [opened.read(i) for i in range(len(opened))]


def test_every_source_image_is_read_back_once_with_its_label(source: Path, out: Path) -> None:
    for split in ("train", "val"):
        expected = [
            (path.read_bytes(), label)
            for label, name in enumerate(CLASSES)
            for path in (source / split / name).iterdir()
        ]
        assert sorted(everything(out, split)) == sorted(expected)


def test_the_set_tells_its_classes_splits_and_identity(out: Path) -> None:
    shards = open_shards(out)
    assert shards.classes == CLASSES
    assert shards.splits == ("train", "val")
    assert shards.location == str(out)
    assert shards.digest == hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()
    assert [len(shards.split(name)) for name in shards.splits] == [21, 9]
    assert shards.split("train").tars == tuple(str(out / f"train-{n:06d}.tar") for n in range(3))
    with pytest.raises(UserError, match="train, val"):
        shards.split("test")


def test_tarfile_finds_the_same_bytes_where_the_index_says(out: Path) -> None:
    split = open_shards(out).split("train")
    i = 0
    for number, (path, index) in enumerate(zip(split.tars, split.indexes, strict=True)):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
        for sample, at in enumerate(range(0, len(members), 3)):
            trio = members[at : at + 3]
            assert [m.name.partition(".")[2] for m in trio] == ["jpg", "cls", "json"]
            assert len({m.name.partition(".")[0] for m in trio}) == 1
            assert [m.offset_data for m in trio] == index.offset_NC[sample].tolist()
            assert [m.size for m in trio] == index.size_bytes_NC[sample].tolist()
            jpg, cls = trio[:2]
            assert split.tar_number[i] == number
            assert (jpg.offset_data, jpg.size) == (split.image_offset[i], split.image_size_bytes[i])
            assert (cls.offset_data, cls.size) == (split.label_offset[i], split.label_size_bytes[i])
            i += 1
    assert i == len(split)


def test_the_tar_program_lists_and_extracts_a_shard(out: Path, tmp_path: Path) -> None:
    into = tmp_path / "extracted"
    into.mkdir()
    subprocess.run(["tar", "-xf", out / "train-000000.tar", "-C", into], check=True)
    for n, (image, label) in enumerate(everything(out, "train")[:8]):
        assert (into / f"{n:08d}.jpg").read_bytes() == image
        assert int((into / f"{n:08d}.cls").read_text()) == label
        about = json.loads((into / f"{n:08d}.json").read_text())
        assert about["wnid"] == CLASSES[label]
        assert about["name"].startswith(about["wnid"])


def test_dali_reads_the_same_samples_in_order_through_the_index(out: Path) -> None:
    dali: Any = pytest.importorskip("nvidia.dali")
    for name in ("train", "val"):
        split = open_shards(out).split(name)
        pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
        with pipeline:
            pipeline.set_outputs(
                *dali.fn.readers.webdataset(
                    paths=list(split.tars),
                    index_paths=[tar.removesuffix(".tar") + ".idx" for tar in split.tars],
                    ext=["jpg", "cls"],
                    missing_component_behavior="error",
                )
            )
        pipeline.build()
        read = []
        for _ in range(len(split)):
            image, label = (np.asarray(output[0]).tobytes() for output in pipeline.run())
            read.append((image, int(label)))
        assert read == everything(out, name)


def test_dalis_own_indexer_writes_the_same_index(out: Path, tmp_path: Path) -> None:
    indexer: Any = pytest.importorskip("wds2idx")
    for path in sorted(out.glob("*.tar")):
        with indexer.IndexCreator(str(path), str(tmp_path / "theirs.idx"), verbose=False) as theirs:
            theirs.create_index()
        assert (tmp_path / "theirs.idx").read_bytes() == path.with_suffix(".idx").read_bytes()


README = Path(__file__).resolve().parents[2] / "shards" / "README.md"


@pytest.mark.skipif(not README.exists(), reason="needs the checkout")
def test_every_reader_in_the_readme_gives_the_first_sample(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shards").symlink_to(out)
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("nvidia.dali")
    accelssl_block, torch_block, webdataset_block, dali_block = re.findall(
        "```python\n(.*?)```", README.read_text(), re.DOTALL
    )
    samples = everything(out, "train")
    names: dict[str, Any] = {}
    exec(accelssl_block, names)
    assert (names["jpeg"], names["label"]) == samples[0]
    exec(torch_block, names)
    decoded = np.asarray(Image.open(io.BytesIO(samples[0][0])), np.int16)
    assert (np.asarray(names["image"]) == decoded).all() and names["label"] == samples[0][1]
    exec(webdataset_block, names)
    assert (names["jpeg"], names["label"]) == samples[-1]
    exec(dali_block, names)
    assert names["first_label"] == samples[0][1]
    assert np.abs(np.array(names["images"][0]) - decoded).mean() < 2


def test_many_threads_read_what_one_thread_reads(out: Path) -> None:
    split = open_shards(out).split("train")
    expected = everything(out, "train")
    wrong: list[int] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, len(split), 200)
        wrong.extend(int(i) for i in order if split.read(int(i)) != expected[i])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_split_gives_back_its_open_files(out: Path) -> None:
    open_files = Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("needs /proc")
    before = len(list(open_files.iterdir()))
    assert everything(out, "train")
    assert len(list(open_files.iterdir())) == before


def test_describe_names_tar_and_key(out: Path) -> None:
    split = open_shards(out).split("train")
    assert split.describe(0) == "train-000000.tar: key 00000000"
    assert split.describe(9) == "train-000001.tar: key 00000009"


@pytest.mark.parametrize("i", [-1, 21])
def test_a_position_outside_the_split_is_not_a_sample(out: Path, i: int) -> None:
    with pytest.raises(IndexError):
        open_shards(out).split("train").read(i)


def stale_index(out: Path) -> None:
    (out / "train-000000.idx").write_bytes((out / "train-000001.idx").read_bytes())


def edited_index(out: Path) -> None:
    path = out / "train-000001.idx"
    path.write_text(path.read_text().replace("jpg 512 ", "jpg 513 "))


def no_index(out: Path) -> None:
    (out / "train-000002.idx").unlink()


def no_tar(out: Path) -> None:
    (out / "val-000001.tar").unlink()


def short_tar(out: Path) -> None:
    path = out / "val-000000.tar"
    path.write_bytes(path.read_bytes()[:-512])


def empty_tar(out: Path) -> None:
    (out / "val-000000.tar").write_bytes(b"")


def no_manifest(out: Path) -> None:
    (out / "manifest.json").unlink()


def garbled_manifest(out: Path) -> None:
    (out / "manifest.json").write_text("{}")


def binary_manifest(out: Path) -> None:
    (out / "manifest.json").write_bytes(b"\xff\xfe\x00")


def later_manifest(out: Path) -> None:
    edit_manifest(out, lambda document: document.update(version=3))


def escaping_manifest(out: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["splits"]["val"]["shards"][0]["name"] = "../val-000000"

    edit_manifest(out, edit)


def reordered_manifest(out: Path) -> None:
    edit_manifest(out, lambda document: document["classes"].reverse())


def miscounted_manifest(out: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["splits"]["val"]["written"] += 1

    edit_manifest(out, edit)


def edit_manifest(out: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((out / "manifest.json").read_text())
    edit(document)
    (out / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (stale_index, "train-000000.idx"),
        (edited_index, "train-000001.idx"),
        (no_index, "train-000002.idx"),
        (no_tar, "val-000001.tar"),
        (short_tar, "val-000000.tar"),
        (empty_tar, "val-000000.tar"),
        (no_manifest, "manifest.json"),
        (garbled_manifest, "manifest.json"),
        (binary_manifest, "manifest.json"),
        (later_manifest, "version 3"),
        (escaping_manifest, "manifest.json"),
        (miscounted_manifest, "manifest.json"),
        (reordered_manifest, "manifest.json was changed"),
    ],
)
def test_a_set_that_changed_is_refused_by_the_name_of_the_file(
    out: Path, spoil: Callable[[Path], None], named: str
) -> None:
    spoil(out)
    with pytest.raises(UserError, match=named) as caught:
        open_shards(out)
    assert caught.value.remedy


NESTINGS = [*range(100, 1100, 50), 100_000]


@pytest.mark.parametrize("field", ["format", "version", "splits", "checksum", "more"])
def test_a_manifest_nested_too_deep_is_refused(out: Path, field: str) -> None:
    document = json.loads((out / "manifest.json").read_text())
    text = json.dumps(document | {field: "HERE"})
    for depth in NESTINGS:  # for reading, for writing and for neither, however deep this test is
        nested = text.replace('"HERE"', "[" * depth + "]" * depth)
        (out / "manifest.json").write_text(nested)
        with pytest.raises(UserError, match=r"manifest\.json") as caught:
            open_shards(out)
        assert len(caught.value.what) < 10_000


def test_a_number_with_too_many_digits_in_a_manifest_is_refused(out: Path) -> None:
    text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(text.replace('"version": 2', '"version": ' + "2" * 5000))
    with pytest.raises(UserError, match=r"manifest\.json is not the manifest"):
        open_shards(out)


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_what_is_not_a_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        open_shards(tmp_path / path)


def test_a_place_without_objects_holds_nothing(bucket: str) -> None:
    url = f"s3://{bucket}/nowhere"
    with pytest.raises(UserError) as caught:
        open_shards(url)
    assert caught.value.what == f"There is nothing at {url}."


def test_a_tar_cut_short_after_opening_is_a_clear_error(out: Path) -> None:
    split = open_shards(out).split("train")
    os.truncate(out / "train-000001.tar", int(split.image_offset[9]) + 5)
    assert split.read(8)
    with pytest.raises(UserError, match=r"train-000001.tar: key 00000009 ends after 5 of"):
        split.read(9)


def test_a_tar_that_vanished_after_opening_is_a_clear_error(out: Path) -> None:
    split = open_shards(out).split("train")
    (out / "train-000002.tar").unlink()
    (out / "train-000002.idx").unlink()
    with pytest.raises(UserError, match=r"train-000002.tar: sample 4 cannot be read"):
        split.read(20)


@pytest.mark.parametrize("label", [b"3", b"-", b"x", b" "])
def test_a_label_out_of_range_is_a_clear_error(out: Path, label: bytes) -> None:
    split = open_shards(out).split("train")
    with (out / "train-000000.tar").open("r+b") as tar:
        tar.seek(int(split.label_offset[2]))
        tar.write(label)
    with pytest.raises(UserError, match=r"train-000000.tar: key 00000002 has the label"):
        split.read(2)
