"""Notices half a download: compares what was found of ImageNet-1k with what is to be there."""

from collections.abc import Mapping

from accelssl.shards.sources.ilsvrc2012 import VAL_IMAGES_PER_CLASS, imagenet_classes


def what_is_missing(
    images: Mapping[str, Mapping[str, int]], *, is_subset: bool, limit_per_class: int | None
) -> str | None:
    """A sentence on what differs from the complete ImageNet-1k, or from the chosen part of it.

    `images` counts the images of each class, by split, before the limit. None if nothing differs,
    or if the classes are not all ImageNet's.
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
