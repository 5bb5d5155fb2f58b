"""The webdataset library reads the samples of a set, in the order of the manifest."""

import io
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image

from accelssl.errors import UserError
from accelssl.shards import webdataset_of
from accelssl.shards.shard_set import open_shards
from tests.shards.planted_sets import edit_document

Pairs = list[tuple[bytes, int]]


def stored(root: Path, split: str) -> Pairs:
    opened = open_shards(root).split(split)
    return [opened.read(i) for i in range(len(opened))]


def pixels(image: Image.Image) -> bytes:
    return np.asarray(image.convert("RGB")).tobytes()


def decoded(pairs: Iterable[tuple[bytes, int]]) -> Pairs:
    return [(pixels(Image.open(io.BytesIO(image))), label) for image, label in pairs]


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_library_finds_the_stored_bytes_in_order(clean: Path, split: str) -> None:
    tars = open_shards(clean).split(split).tars
    dataset = wds.WebDataset(list(tars), shardshuffle=False)
    assert [(s["jpg"], int(s["cls"])) for s in dataset] == stored(clean, split)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_is_its_images_and_labels_in_order(clean: Path, split: str) -> None:
    samples = list(webdataset_of(clean, split))
    assert all(image.mode == "RGB" and type(label) is int for image, label in samples)
    assert [(pixels(image), label) for image, label in samples] == decoded(stored(clean, split))


def test_the_shards_follow_the_manifest_and_not_their_names(clean: Path) -> None:
    edit_document(clean, lambda document: document["splits"]["train"]["shards"].reverse())
    expected = decoded(stored(clean, "train"))
    assert [(pixels(image), label) for image, label in webdataset_of(clean, "train")] == expected
    assert open_shards(clean).split("train").tars[0].endswith("train-000002.tar")


def test_each_sample_comes_once_from_workers_that_are_more_than_the_shards(clean: Path) -> None:
    dataset = webdataset_of(clean, "val").map_tuple(pixels, int)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(map(tuple, loader)) == sorted(decoded(stored(clean, "val")))


def test_a_folder_may_be_relative_and_have_a_colon_in_its_name(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean.rename(clean.with_name("a:b"))
    monkeypatch.chdir(clean.parent)
    assert len(list(webdataset_of("a:b", "val"))) == len(stored(Path("a:b"), "val"))


def test_an_unknown_split_is_refused(clean: Path) -> None:
    with pytest.raises(UserError, match="has no split 'test'"):
        webdataset_of(clean, "test")


def test_an_empty_split_is_refused(clean: Path) -> None:
    empty = {"written": 0, "quarantined": 0, "transcoded": {}, "shards": []}
    edit_document(clean, lambda document: document["splits"].update(val=empty))
    with pytest.raises(UserError, match="is not the manifest"):
        webdataset_of(clean, "val")


def test_a_changed_manifest_and_a_short_tar_are_refused(clean: Path) -> None:
    text = (clean / "manifest.json").read_text()
    (clean / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(UserError, match="was changed"):
        webdataset_of(clean, "train")
    (clean / "manifest.json").write_text(text)
    (clean / "train-000000.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"train-000000\.tar has 0 bytes"):
        webdataset_of(clean, "train")


def test_a_set_on_s3_is_refused_with_the_command_that_copies_it() -> None:
    with pytest.raises(UserError) as caught:
        webdataset_of("s3://bucket/set", "train")
    assert "aws s3 sync s3://bucket/set shards" in str(caught.value.remedy)


def test_importing_the_package_imports_neither_torch_nor_the_library() -> None:
    code = "import sys, json, accelssl.shards; print(json.dumps(list(sys.modules)))"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert not {"torch", "webdataset"} & set(json.loads(listed.stdout))
