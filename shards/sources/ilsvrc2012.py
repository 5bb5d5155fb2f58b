"""ImageNet-1k (ILSVRC2012): facts from the package's data, and how a source differs from them.

data/ilsvrc2012_classes.txt     a line for each class by wnid: wnid, ILSVRC2012_ID, train images
data/ilsvrc2012_val_labels.txt  line i: the class of validation image i, as a position in that list
data/in100_cmc.txt              the ImageNet-100 of Contrastive Multiview Coding (CMC)
"""

from collections.abc import Mapping
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
    """Return the 1000 classes by wnid, sorted."""
    rows = (line.split() for line in _lines("ilsvrc2012_classes.txt"))
    return {wnid: ImageNetClass(int(number), int(images)) for wnid, number, images in rows}


@cache
def imagenet_val_wnids() -> tuple[str, ...]:
    """Return the wnids of the 50,000 validation images, from ILSVRC2012_val_00000001 on."""
    wnids = tuple(imagenet_classes())
    return tuple(wnids[int(line)] for line in _lines("ilsvrc2012_val_labels.txt"))


def in100_wnids() -> tuple[str, ...]:
    """Return the 100 classes of CMC's ImageNet-100, sorted."""
    return tuple(_lines("in100_cmc.txt"))


def _lines(name: str) -> list[str]:
    data = files("accelssl.shards.sources") / "data" / name
    return data.read_text(encoding="ascii").splitlines()


def differences_from_imagenet(
    images: Mapping[str, Mapping[str, int]], *, is_subset: bool, limit_per_class: int | None
) -> str | None:
    """Describe in one sentence how a source differs from ImageNet-1k, or from the chosen part.

    `images` counts the images of each class, by split, before the limit. Returns None if nothing
    differs, or if not all classes are ImageNet's.
    """
    facts = imagenet_classes()
    classes = images["train"].keys()
    if not classes <= facts.keys():
        return None
    wanted = classes if is_subset else facts.keys()
    limit = limit_per_class or max(fact.train_images for fact in facts.values())
    expected = {
        "train": {wnid: min(limit, facts[wnid].train_images) for wnid in wanted},
        "val": {wnid: min(limit, VAL_IMAGES_PER_CLASS) for wnid in wanted},
    }
    differences = []
    if len(classes) != len(wanted):
        differences.append(f"{len(classes):,} of {len(wanted):,} classes")
    for split, of_class in expected.items():
        found = {wnid: min(limit, n) for wnid, n in images.get(split, {}).items()}
        if any(found.get(wnid, 0) != n for wnid, n in of_class.items()):
            differences.append(
                f"{sum(found.values()):,} of {sum(of_class.values()):,} {split} images"
                + _first_difference(found, {wnid: of_class[wnid] for wnid in sorted(classes)})
            )
    if not differences:
        return None
    whole = "the chosen part of ImageNet-1k" if is_subset or limit_per_class else "ImageNet-1k"
    return f"This is not the whole of {whole}: it has {', '.join(differences)}."


def _first_difference(found: Mapping[str, int], expected: Mapping[str, int]) -> str:
    different = [wnid for wnid, n in expected.items() if found.get(wnid, 0) != n]
    if not found or not different:
        return ""
    first = different[0]
    return f" ({first} has {found.get(first, 0)} of {expected[first]})"
