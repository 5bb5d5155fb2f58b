"""GPU tests skip by themselves; a small shard set that the tests of loader and trainer share."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.shards.write.shard_imagenet import shard_images

CLASSES, TRAIN, VAL = 4, 10, 5


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session", autouse=True)
def same_precision() -> Iterator[None]:
    """Let two runs of a test compute alike: `--precision auto` times this processor's products."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("accelssl.train.precision._cpu_gains", lambda: False)
        yield


def smooth_picture(rng: np.random.Generator, height: int, width: int, hue: int) -> Image.Image:
    """A smooth random colour field that leans towards a colour of its class."""
    coarse = rng.integers(0, 160, (5, 6, 3)).astype(np.uint8)
    coarse[..., hue % 3] += 30 * (hue // 3) + 60
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def shard_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 40 training and 20 validation pictures of 4 classes, in sizes of their own."""
    root, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", VAL)):
        for c in range(CLASSES):
            folder = root / "pictures" / split / f"class{c}"
            folder.mkdir(parents=True)
            for i in range(count):
                height, width = rng.integers(90, 160, 2).tolist()
                smooth_picture(rng, height, width, c).save(folder / f"{i}.jpg", quality=92)
    shard_images(root / "pictures", root / "shards")
    return root / "shards"


@pytest.fixture(scope="session")
def shard_set(shard_dir: Path) -> ShardSet:
    return open_shards(shard_dir)
