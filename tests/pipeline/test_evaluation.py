"""Evaluation batches against torchvision's Resize(256, BICUBIC) and CenterCrop(224)."""

import io
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.draws.windows import central_windows
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import LoaderOptions
from accelssl.shards.shard_set import Split, open_shards
from accelssl.shards.write.shard_imagenet import shard_images

# Photographs in shapes at which the long side has no whole number of pixels at short side 256.
SIZES = {
    "astronaut": (375, 500),
    "coffee": (500, 333),
    "chelsea": (257, 301),
    "rocket": (400, 401),
    "cat": (120, 97),
    "retina": (1100, 1203),
}
TRANSFORM = (v2.Resize(256, v2.InterpolationMode.BICUBIC), v2.CenterCrop(224))

Pixels = NDArray[np.float64]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root = tmp_path_factory.mktemp("photographs")
    for kind in ("train", "val"):
        (root / "pictures" / kind / "all").mkdir(parents=True)
    for name, (height, width) in SIZES.items():
        photograph = Image.fromarray(getattr(skimage.data, name)()[..., :3])
        photograph = photograph.resize((width, height), Image.Resampling.LANCZOS)
        for kind in ("train", "val"):
            photograph.save(root / "pictures" / kind / "all" / f"{name}.jpg", quality=92)
    shard_images(root / "pictures", root / "shards")
    return open_shards(Path(root / "shards")).split("val")


def shown(split: Split, device: torch.device, **options: bool) -> Pixels:
    """Reassemble pixels_NHWC, in levels of 255, from the tokens."""
    ((tokens, _),) = evaluation_batches(split, LoaderOptions(8, 0, device), **options)
    patches = tokens.values_NLV.cpu().double().view(-1, 14, 14, 3, 16, 16)
    pixels = patches.permute(0, 1, 4, 2, 5, 3).reshape(-1, 224, 224, 3)
    levels = (pixels * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)) * 255
    return levels.numpy()


def decoded(split: Split) -> list[Image.Image]:
    return [Image.open(io.BytesIO(split.read(i)[0])).convert("RGB") for i in range(len(split))]


def test_a_picture_is_torchvisions_to_a_level(split: Split) -> None:
    """Torchvision on tensors also rounds once."""
    ours = shown(split, torch.device("cpu"))
    for picture, image in zip(ours, decoded(split), strict=True):
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        for step in TRANSFORM:
            pixels = step(pixels)
        expected = pixels.permute(1, 2, 0).clamp(0, 255).numpy()
        assert np.abs(picture - expected).max() < 1


def test_a_picture_is_pillows_to_a_level_nearly_everywhere(split: Split) -> None:
    """Pillow also rounds and clips between its two passes, with an effect beside hard edges."""
    ours = shown(split, torch.device("cpu"))
    for picture, image in zip(ours, decoded(split), strict=True):
        for step in TRANSFORM:
            image = step(image)
        gap = np.abs(picture.round() - np.asarray(image, dtype=np.float64))
        assert (gap <= 1).mean() > 0.999 and gap.max() <= 4 and gap.mean() < 0.3


def test_linear_interpolation_is_another_picture(split: Split) -> None:
    device = torch.device("cpu")
    gap = np.abs(shown(split, device) - shown(split, device, is_cubic=False))
    assert gap.mean() > 0.8


@pytest.mark.gpu
def test_a_gpu_shows_the_same(split: Split) -> None:
    """The tolerance covers the JPEG decoders; a crop shifted by one pixel exceeds it."""
    gap = np.abs(shown(split, torch.device("cuda")) - shown(split, torch.device("cpu")))
    assert gap.mean() < 2


def test_windows_are_where_torchvision_cuts() -> None:
    """Windows agree to the pixel of the resized picture, also where halves are rounded."""
    for height, width in [(375, 500), (500, 375), (257, 301), (1, 7), (300, 300), (101, 5000)]:
        short = min(height, width)
        resized = int(256 * height / short), int(256 * width / short)
        window = central_windows(np.array([[height, width]]))[0]
        ramp = torch.arange(resized[0])[:, None] * 100_000 + torch.arange(resized[1])
        corner = v2.CenterCrop(224)(ramp[None])[0, 0, 0]
        top, left = divmod(int(corner), 100_000)
        expected = [
            top * height / resized[0],
            left * width / resized[1],
            (top + 224) * height / resized[0],
            (left + 224) * width / resized[1],
        ]
        assert window.tolist() == pytest.approx(expected, rel=1e-6)
