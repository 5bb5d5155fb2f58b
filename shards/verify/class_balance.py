"""Check of the number of samples in each class, also against ImageNet-1k."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from accelssl.shards.sources.ilsvrc2012 import VAL_IMAGES_PER_CLASS, imagenet_classes
from accelssl.shards.verify.findings import CLASSES, NOT_CHECKED, Findings
from accelssl.shards.verify.manifest_checks import ExpectedSet
from accelssl.shards.verify.sample_content import NO_LABEL
from accelssl.text import plural

_TRAIN, _VAL = "train", "val"

Int32 = npt.NDArray[np.int32]


def check_balance(
    expected: ExpectedSet, label_by_split: Mapping[str, Int32], findings: Findings
) -> str:
    """Find classes without samples and return the figures by split."""
    if expected.classes is None:
        return f"{NOT_CHECKED}: the manifest names no classes"
    figures = []
    for split, label_N in label_by_split.items():
        count_C = np.bincount(label_N[label_N != NO_LABEL], minlength=len(expected.classes))
        least, middle, most = count_C.min(), np.median(count_C), count_C.max()
        figures.append(f"{split} {least:,} / {middle:,.0f} / {most:,}")
        if split == _TRAIN:
            _find_empty(expected, count_C, findings)
        else:
            _note_empty(split, expected.classes, count_C, findings)
        _compare_with_imagenet(split, expected.classes, count_C, findings)
    return f"{plural(len(expected.classes), 'class')}; least / median / most: {', '.join(figures)}"


def _find_empty(expected: ExpectedSet, count_C: npt.NDArray[np.int64], findings: Findings) -> None:
    # Labels of others may leave out numbers: such a set was adopted as it is.
    report = findings.note if expected.is_adopted else findings.wrong
    for label in np.flatnonzero(count_C == 0):
        name = (expected.classes or ())[label]
        report(CLASSES, "a class without samples", name, f"train has none of label {label}")


def _note_empty(
    split: str, classes: tuple[str, ...], count_C: npt.NDArray[np.int64], findings: Findings
) -> None:
    """Note classes without samples: accuracy on the split says nothing about them."""
    empty = np.flatnonzero(count_C == 0)
    if len(empty):
        where = f"{len(empty):,} of {plural(len(classes), 'class')}"
        what = f"{split} has none of them; first, {classes[empty[0]]}"
        findings.note(CLASSES, f"classes without samples in {split}", where, what)


def _compare_with_imagenet(
    split: str, classes: tuple[str, ...], count_C: npt.NDArray[np.int64], findings: Findings
) -> None:
    """Note classes whose number of images differs from ImageNet-1k."""
    known = imagenet_classes()
    if split not in (_TRAIN, _VAL) or not set(classes) <= known.keys():
        return
    expected = [
        known[name].train_images if split == _TRAIN else VAL_IMAGES_PER_CLASS for name in classes
    ]
    different = [i for i, count in enumerate(count_C.tolist()) if count != expected[i]]
    if different:
        first = different[0]
        what = (
            f"{split} has {count_C.sum():,} of their {sum(expected):,} images in ImageNet-1k; "
            f"first, {classes[first]} has {count_C[first]:,} of {expected[first]:,}"
        )
        where = f"{len(different):,} of {plural(len(classes), 'class')}"
        findings.note(CLASSES, f"{split} differs from ImageNet-1k", where, what)
