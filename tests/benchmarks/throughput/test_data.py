"""The pictures, the page cache and the loader of others that a run is measured with."""

import errno
import io
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from accelssl.benchmarks.matrix_peak import matrix_peak
from accelssl.benchmarks.throughput import page_cache, pictures
from accelssl.benchmarks.throughput.page_cache import drop_from_cache, read_into_cache
from accelssl.benchmarks.throughput.pictures import make_set, write_pictures
from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.shards.shard_set import ShardSet, open_shards

CPU = torch.device("cpu")


def test_a_made_set_has_as_many_full_size_files_as_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    path, what = make_set(tmp_path, 300, lambda doing: None)
    split = open_shards(path).split("train")
    assert len(split) == 300
    data = [split.read(i)[0] for i in range(300)]
    assert len(set(data)) == 128  # each picture, two or three times
    sizes = [Image.open(io.BytesIO(jpeg)).size for jpeg in data]
    assert set(sizes) == {(500, 375), (375, 500)}
    assert 50e3 < sum(map(len, data)) / 300 < 200e3  # ImageNet's have 110 kB
    assert what.startswith("300 files of 128 pictures of 500x375 px")
    assert not (tmp_path / "linked").exists()


def test_missing_photographs_are_told_with_the_other_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object, **options: object) -> None:
        raise UserError("scikit-image is not installed.", "Install it.")

    monkeypatch.setattr(pictures, "write_demo_pictures", missing)
    with pytest.raises(UserError, match="scikit-image") as refused:
        write_pictures(tmp_path / "pictures", tmp_path / "tiles")
    assert refused.value.remedy == "Install it. Or name a set with --shards."


def is_cached(path: Path) -> bool:
    """Whether a page in the middle comes without waiting for the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_dropped_files_are_gone_from_the_cache_and_read_ones_are_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(2**22))
        file.flush()
        os.fsync(file.fileno())
    if reason := drop_from_cache([str(path)]):
        pytest.skip(reason)  # no disk under the temporary folder
    assert not is_cached(path)
    assert read_into_cache([str(path)]) is None
    assert is_cached(path)


def test_files_that_only_exist_in_memory_are_not_taken_for_dropped() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        pytest.skip("no tmpfs here")
    path = memory / f"accelssl-test-{os.getpid()}"
    path.write_bytes(bytes(2**20))
    try:
        reason = drop_from_cache([str(path)])
    finally:
        path.unlink()
    assert reason is not None
    assert str(path) in reason


def test_file_systems_that_do_not_tell_are_not_taken_for_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    (tmp_path / "file").write_bytes(bytes(100))
    monkeypatch.setattr(os, "preadv", refuse)
    reason = drop_from_cache([str(tmp_path / "file")])
    assert reason is not None
    assert "does not say what is cached (Operation not supported)" in reason


def test_urls_and_sets_larger_than_memory_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://bucket/train-000000.tar"
    for ask in (drop_from_cache, read_into_cache):
        assert ask([url]) == f"{url} is not a local file"
    (tmp_path / "file").write_bytes(bytes(300))
    monkeypatch.setattr(page_cache, "available_bytes", lambda: 500)
    assert read_into_cache([str(tmp_path / "file")]) == "its 0.0 GB may not fit in memory"


def test_torchvisions_loader_makes_two_views_of_each_image(shard_set: ShardSet) -> None:
    peer = pytest.importorskip("accelssl.benchmarks.throughput.torchvision_peer")
    split = shard_set.split("train")
    pairs = peer.Pairs(shard_set.location, "train", len(split), views.simclr(240))
    assert len(pairs) == 40
    first, second = pairs[7]
    for view in (first, second):
        assert view.shape == (3, 240, 240)
        assert view.dtype == torch.float32
    assert not torch.equal(first, second)


def test_its_views_keep_the_image_where_nothing_is_drawn(shard_set: ShardSet) -> None:
    """Whole crop, no jitter, gray, blur or flip: Pillow's resize, normalised."""
    peer = pytest.importorskip("accelssl.benchmarks.throughput.torchvision_peer")
    view = views.View("plain", 64, (1.0, 1.0), (1.0, 1.0), jitter_p=0, gray_p=0, flip_p=0)
    picture = Image.linear_gradient("L").convert("RGB")  # 256 x 256
    resized = picture.resize((64, 64), Image.Resampling.BILINEAR)
    values = torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8).view(64, 64, 3)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = ((values / 255 - mean) / std).permute(2, 0, 1)
    torch.testing.assert_close(peer.transform(view)(picture), expected, rtol=0, atol=1e-5)


@pytest.mark.slow  # a worker imports torch
def test_all_its_workers_share_a_batch(shard_set: ShardSet) -> None:
    peer = pytest.importorskip("accelssl.benchmarks.throughput.torchvision_peer")
    split, pair = shard_set.split("train"), views.simclr(64)
    loader = peer.TorchvisionLoader(shard_set.location, split, pair, batch=9, workers=2)
    try:
        assert (loader.part, loader.parts, loader.batch) == (4, 2, 8)
        for _ in range(6):  # beyond the end of an epoch
            parts = loader.next()
            assert [tuple(view.shape) for part in parts for view in part] == [(4, 3, 64, 64)] * 4
    finally:
        loader.close()


def test_the_matrix_peak_is_that_of_a_product() -> None:
    peak = matrix_peak(CPU, torch.float32)
    assert peak.dtype == "float32"
    assert peak.side in (512, 1024)
    assert peak.flops_per_s == pytest.approx(2 * peak.side**3 / peak.time.median_s)
    assert 1e9 < peak.flops_per_s < 1e14
