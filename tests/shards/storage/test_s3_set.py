"""A shard set in a bucket is what it would be in a folder: to us, to DALI, and when damaged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.errors import UserError
from accelssl.pipeline.draws.draws import Drawn
from accelssl.pipeline.draws.order import Position, plans
from accelssl.pipeline.draws.windows import central_windows
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.shards.shard_set import Split, open_shards
from accelssl.shards.storage.storage import Storage, open_storage
from accelssl.shards.write.shard_imagenet import shard_images

pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("source"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 3)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                width, height = rng.integers(20, 60, 2).tolist()
                pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.jpg")
    return root


@pytest.fixture(scope="module")
def local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "set"
    shard_images(source, folder, samples_per_shard=9, workers=1)
    return folder


@pytest.fixture
def remote(local: Path, bucket: str) -> Storage:
    """A copy of the set in the bucket, under a prefix with a blank in it."""
    storage = open_storage(f"s3://{bucket}/sets/a set")
    for path in local.iterdir():
        storage.write(path.name, path.read_bytes())
    return storage


def batches(split: Split) -> list[Encoded]:
    planned = plans(len(split), 7, seed=5, rank=0, world=1, start=Position())
    feed = EncodedBatches(
        split, planned, lambda _, sizes_N2: Drawn((central_windows(sizes_N2),)), threads=2
    )
    return [next(feed) for _ in range(5)]  # past the end of an epoch


def test_every_sample_is_the_one_of_the_local_set(local: Path, remote: Storage) -> None:
    ours, theirs = open_shards(local), open_shards(remote.location)
    assert theirs.digest == ours.digest
    assert theirs.location == remote.location
    for name in ("train", "val"):
        expected = [ours.split(name).read(i) for i in range(len(ours.split(name)))]
        split = theirs.split(name)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(split.read, range(len(split)))) == expected
        assert split.tars == tuple(
            f"{remote.location}/{shard.name}.tar" for shard in ours.split(name).shards
        )


def test_the_loader_is_fed_the_same_batches(local: Path, remote: Storage) -> None:
    expected = batches(open_shards(local).split("train"))
    fed = batches(open_shards(remote.location).split("train"))
    for ours, theirs in zip(expected, fed, strict=True):
        assert (ours.plan.samples_N == theirs.plan.samples_N).all()
        assert (ours.labels_N == theirs.labels_N).all()
        assert (ours.drawn.windows[0] == theirs.drawn.windows[0]).all()
        assert [j.tobytes() for j in ours.jpegs] == [j.tobytes() for j in theirs.jpegs]


def test_a_set_written_into_a_bucket_has_the_bytes_of_a_local_one(
    source: Path, local: Path, bucket: str
) -> None:
    url = f"s3://{bucket}/new"
    shard_images(source, url, samples_per_shard=9, workers=1)
    storage = open_storage(url)
    assert storage.names() == sorted(path.name for path in local.iterdir())
    for path in local.iterdir():
        assert storage.read(path.name) == path.read_bytes()


def test_dali_reads_the_bucket_by_itself(local: Path, remote: Storage) -> None:
    from nvidia.dali import fn, pipeline_def

    split = open_shards(remote.location).split("train")

    @pipeline_def(batch_size=len(split), num_threads=2, device_id=None)
    def webdataset():  # type: ignore[no-untyped-def]
        components: Any = fn.readers.webdataset(
            paths=list(split.tars),
            index_paths=[tar.removesuffix("tar") + "idx" for tar in split.tars],
            ext=["jpg", "cls"],
            missing_component_behavior="error",
        )
        return tuple(components)

    pipeline = webdataset()
    jpegs, labels = pipeline.run()
    expected = open_shards(local).split("train")
    for i in range(len(expected)):
        image, label = expected.read(i)
        assert jpegs.at(i).tobytes() == image
        assert int(labels.at(i).tobytes()) == label


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("manifest.json", "it is not a shard set"),
        ("train-000001.tar", "is missing"),
        ("train-000001.idx", "cannot be read: there is no such object"),
    ],
)
def test_a_missing_object_is_named(remote: Storage, name: str, said: str) -> None:
    remote.delete(name)
    with pytest.raises(UserError, match=said) as caught:
        open_shards(remote.location)
    assert name in caught.value.what
    assert remote.location in caught.value.what


@pytest.mark.parametrize("name", ["train-000001.idx", "train-000001.tar", "manifest.json"])
def test_a_changed_object_is_named(remote: Storage, name: str) -> None:
    remote.write(name, remote.read(name).replace(b"1", b"2", 1) + b"\n")
    with pytest.raises(UserError) as caught:
        open_shards(remote.location)
    assert remote.path_of(name) in caught.value.what


def test_what_vanishes_later_is_named_by_shard_and_key(remote: Storage) -> None:
    split = open_shards(remote.location).split("train")
    remote.delete("train-000002.tar")
    last = len(split) - 1
    with pytest.raises(UserError, match="cannot be read: there is no such object") as caught:
        split.read(last)
    assert caught.value.what.startswith(f"train-000002.tar: key {last:08d}")
    with pytest.raises(UserError, match=r"train-000002\.tar: key"):
        batches(split)


def test_a_tar_cut_short_later_is_named_by_shard_and_key(remote: Storage) -> None:
    split = open_shards(remote.location).split("train")
    tar = remote.read("train-000002.tar")
    remote.write("train-000002.tar", tar[: int(split.image_offset[-1]) + 100])
    with pytest.raises(UserError, match=r"train-000002\.tar: key \d+ ends after 100 of"):
        split.read(len(split) - 1)


def test_a_missing_bucket_is_named(remote: Storage) -> None:
    with pytest.raises(UserError, match="there is no bucket no-such-bucket"):
        open_shards("s3://no-such-bucket/set")


def test_a_prefix_without_a_set_is_named(remote: Storage) -> None:
    other = remote.location + " too"
    with pytest.raises(UserError, match=other):
        open_shards(other)
