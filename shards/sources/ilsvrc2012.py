"""Facts about ImageNet-1k (ILSVRC2012) that come with the package, so that its archives suffice.

data/ilsvrc2012_classes.txt     a line for each class by wnid: wnid, ILSVRC2012_ID, train images
data/ilsvrc2012_val_labels.txt  line i: the class of validation image i, as a position in that list
data/in100_cmc.txt              the ImageNet-100 of Contrastive Multiview Coding (CMC)
"""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

VAL_IMAGES_PER_CLASS = 50


class ImageNetClass(NamedTuple):
    """A class: its ILSVRC2012_ID (1 to 1000, not its position by wnid), its number of images."""

    ilsvrc2012_id: int
    train_images: int


@cache
def imagenet_classes() -> dict[str, ImageNetClass]:
    """The 1000 classes by wnid, sorted."""
    rows = (line.split() for line in _lines("ilsvrc2012_classes.txt"))
    return {wnid: ImageNetClass(int(number), int(images)) for wnid, number, images in rows}


@cache
def imagenet_val_wnids() -> tuple[str, ...]:
    """The wnids of the 50,000 validation images; the first is that of ILSVRC2012_val_00000001."""
    wnids = tuple(imagenet_classes())
    return tuple(wnids[int(line)] for line in _lines("ilsvrc2012_val_labels.txt"))


def in100_wnids() -> tuple[str, ...]:
    """The 100 classes of CMC's ImageNet-100, sorted."""
    return tuple(_lines("in100_cmc.txt"))


def _lines(name: str) -> list[str]:
    data = files("accelssl.shards.sources") / "data" / name
    return data.read_text(encoding="ascii").splitlines()
