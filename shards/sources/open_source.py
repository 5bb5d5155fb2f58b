"""Opening a source of labelled images in any supported layout."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from accelssl.shards.sources.checks import (
    refuse_bad_val,
    refuse_empty_classes,
    refuse_unknown_classes,
    refuse_validation_as_train,
)
from accelssl.shards.sources.devkit import read_devkit, refuse_short_truth
from accelssl.shards.sources.gathering import Gathering
from accelssl.shards.sources.ilsvrc2012 import differences_from_imagenet
from accelssl.shards.sources.label_votes import LabelVotes
from accelssl.shards.sources.layout import Layout, Part, find_layout
from accelssl.shards.sources.listing import Listing
from accelssl.shards.sources.selection import Selection, refuse_missing
from accelssl.shards.sources.source import SPLITS, Ignored, Source
from accelssl.shards.sources.walk_folder import walk_folder
from accelssl.shards.sources.walk_tar import walk_tar
from accelssl.shards.sources.walk_webdataset import (
    SampleClasses,
    holds_samples,
    walk_webdataset,
)

_REPORT_EVERY = 1000
_ALL = Selection()


def open_source(
    source: Path,
    *,
    val: Path | None = None,
    devkit: Path | None = None,
    selection: Selection = _ALL,
    on_listed: Callable[[int], None] | None = None,
) -> Source:
    """List the images of a source, sorted by class and name, without reading them.

    `source` is one of these:

    - a folder with train/<class>/* and val/<class>/*, or with classes that are all train;
    - a folder with ImageNet's archives as downloaded, or the train archive alone;
    - a folder of WebDataset tars with labels.

    `val` names a folder or archive outside `source`, `devkit` the development kit of ILSVRC2012.
    `on_listed` is called from time to time with the number of images found so far.

    Raises UserError for a source that is missing, unreadable, damaged, compressed or of another
    layout. Other reasons are images of an unknown or contradicting class, repeated images, an empty
    class of train, classes that are only in val, and selected classes that are missing.
    """
    chosen = selection.chosen()
    ignored = Ignored()
    layout = find_layout(source, val, devkit, ignored)
    gatherings = _gathered(layout, ignored, on_listed)
    if chosen is not None:
        for gathering in gatherings.values():
            gathering.keep_only(chosen)
    classes = _checked_classes(layout, gatherings, chosen, ignored)
    missing = differences_from_imagenet(
        {split: gathering.images_by_class() for split, gathering in gatherings.items()},
        is_subset=chosen is not None,
        limit_per_class=selection.limit_per_class,
    )
    return Listing(
        classes,
        {
            split: gathering.listing(classes, selection.limit_per_class)
            for split, gathering in gatherings.items()
        },
        options=selection.options(chosen),
        ignored=ignored,
        notes=(*layout.notes, *ignored.notes(), *([missing] if missing else [])),
    )


def _gathered(
    layout: Layout, ignored: Ignored, on_listed: Callable[[int], None] | None
) -> dict[str, Gathering]:
    """Return the images of each split of the source."""
    truth = None if layout.devkit is None else read_devkit(layout.devkit)
    votes = LabelVotes(truth)
    count = _Count(on_listed)
    gatherings = {split: Gathering(votes, count.add) for split in SPLITS if _parts(layout, split)}
    _walk(layout, gatherings, ignored)
    count.report()
    if layout.devkit is not None and truth is not None:
        beyond, highest = votes.beyond_devkit, votes.highest_beyond
        refuse_short_truth(layout.devkit, len(truth), beyond, highest)
    votes.check()
    if layout.val_may_be_in_train and gatherings["val"].is_untouched:
        del gatherings["val"]
    return gatherings


def _parts(layout: Layout, split: str) -> tuple[Part, ...]:
    return layout.train if split == "train" or layout.val_may_be_in_train else layout.val


def _walk(layout: Layout, gatherings: Mapping[str, Gathering], ignored: Ignored) -> None:
    sample_classes = SampleClasses()
    for split, parts in (("train", layout.train), ("val", layout.val)):
        for path, place in parts:
            gathering = gatherings[split]
            if os.path.isdir(path):  # noqa: PTH112 - Path's raises for names that are too long
                passed_over = layout.passed_over if split == "train" else frozenset()
                walk_folder(path, place, gathering, ignored, passed_over)
            elif holds_samples(path):
                walk_webdataset(path, place, gathering, ignored, sample_classes)
            else:
                # Only an archive that is the whole source is asked for both splits.
                wanted = gatherings if layout.val_may_be_in_train else {split: gathering}
                walk_tar(path, place, split, wanted, ignored)
    if names := sample_classes.names():
        for gathering in gatherings.values():
            gathering.rename_classes(names)


def _checked_classes(
    layout: Layout,
    gatherings: Mapping[str, Gathering],
    chosen: tuple[str, ...] | None,
    ignored: Ignored,
) -> tuple[str, ...]:
    """Check the images found and return the sorted classes of train."""
    for split, gathering in gatherings.items():
        refuse_unknown_classes(_parts(layout, split), gathering)
    refuse_validation_as_train(layout.train, gatherings["train"])
    train = gatherings["train"].images_by_class()
    if chosen is not None:
        refuse_missing(chosen, train)
    refuse_empty_classes(layout.train, train, ignored.notes())
    classes = tuple(sorted(train))
    if "val" in gatherings:
        val_parts = _parts(layout, "val")
        refuse_bad_val(val_parts, gatherings["val"], classes, is_subset=chosen is not None)
    return classes


class _Count:
    """A count of images that is reported from time to time."""

    def __init__(self, on_listed: Callable[[int], None] | None) -> None:
        self._on_listed = on_listed
        self._count = 0

    def add(self) -> None:
        self._count += 1
        if self._count % _REPORT_EVERY == 0:
            self.report()

    def report(self) -> None:
        if self._on_listed is not None:
            self._on_listed(self._count)
