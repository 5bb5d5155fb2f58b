"""Checks across shards: classes, duplicates, order.

Legend: N samples of a split or of the set, P shards.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from accelssl.shards.verify.class_balance import check_balance
from accelssl.shards.verify.duplicates import check_repeated, note_same_images
from accelssl.shards.verify.findings import (
    CLASSES,
    DUPLICATES,
    NOT_CHECKED,
    ORDER,
    Findings,
)
from accelssl.shards.verify.key_numbers import check_key_numbers
from accelssl.shards.verify.manifest_checks import ExpectedSet
from accelssl.shards.verify.order_check import LIMIT_SD, judge_order
from accelssl.shards.verify.sample_content import NO_LABEL, Content

_NOTHING_READ = f"{NOT_CHECKED}: no sample could be read"
_SPLIT_KEYS_HELD = 4


class ReadShard(NamedTuple):
    """A shard whose tar could be read."""

    split: str
    name: str
    content: Content


BySplit = Mapping[str, Sequence[ReadShard]]


def check_whole(
    expected: ExpectedSet, shards: Sequence[ReadShard], findings: Findings
) -> dict[str, str]:
    """Check all samples that could be read, in the order of the set; return figures by check."""
    by_split = {split: [s for s in shards if s.split == split] for split in expected.splits}
    label_by_split = {
        split: np.concatenate([shard.content.label_N for shard in of_split])
        for split, of_split in by_split.items()
        if of_split
    }
    if not expected.is_adopted:
        for split, of_split in by_split.items():
            contents = [shard.content for shard in of_split]
            if contents:
                describe = _Places(of_split).describe
                check_key_numbers(expected, split, contents, describe, findings)
    return {
        CLASSES: check_balance(expected, label_by_split, findings),
        DUPLICATES: _check_duplicates(expected, by_split, findings),
        ORDER: _check_order(expected, by_split, findings),
    }


def _check_duplicates(expected: ExpectedSet, by_split: BySplit, findings: Findings) -> str:
    # Tars of others may number their samples anew in each tar.
    into = findings.notes if expected.is_adopted else findings.problems
    for of_split in filter(None, by_split.values()):
        describe = _Places(of_split).describe
        keys = np.concatenate([shard.content.key_N2 for shard in of_split])
        names = np.concatenate([shard.content.name_N2 for shard in of_split])
        check_repeated(keys, "key", describe, into)
        check_repeated(names, "class and original name", describe, into)
    shards = [shard for of_split in by_split.values() for shard in of_split]
    if not shards:
        return _NOTHING_READ
    splits = list(by_split)
    return note_same_images(
        np.concatenate([shard.content.image_N2 for shard in shards]),
        np.concatenate([shard.content.label_N for shard in shards]),
        np.repeat(
            np.array([splits.index(shard.split) for shard in shards], np.int32),
            [len(shard.content.label_N) for shard in shards],
        ),
        splits,
        _Places(shards).describe,
        findings,
    )


def _check_order(expected: ExpectedSet, by_split: BySplit, findings: Findings) -> str:
    report = findings.wrong if expected.is_shuffled else findings.note
    figures = []
    for split, shards in by_split.items():
        if not shards:
            continue
        places = _Places(shards)
        label_N = np.concatenate([shard.content.label_N for shard in shards])
        # A random shuffle stays one when samples are missing.
        labelled = np.flatnonzero(label_N != NO_LABEL)
        if not len(labelled):
            continue
        firsts = np.unique(np.searchsorted(labelled, places.first_P))
        verdict = judge_order(label_N[labelled], firsts[firsts < len(labelled)])
        deviations = (
            f"{verdict.neighbours_sd:+.1f} sd in neighbours of the same class, "
            f"{verdict.drift_sd:+.1f} sd in drift"
        )
        figures.append(f"{split} {deviations}")
        if not verdict.is_fair:
            what = (
                f"{split} is not shuffled: {deviations}; a random shuffle stays within "
                f"{LIMIT_SD:g} standard deviations (sd)"
            )
            report(ORDER, "not shuffled", places.describe(int(labelled[verdict.at])), what)
    if not figures:
        return _NOTHING_READ
    return ", ".join(figures)


class _Places:
    """Names of samples by their position in a sequence of shards."""

    def __init__(self, shards: Sequence[ReadShard]) -> None:
        self._shards = shards
        counts = [len(shard.content.label_N) for shard in shards]
        self.first_P = np.cumsum([0, *counts[:-1]], dtype=np.int64)[: len(shards)]
        # The keys of a whole set as texts would take more memory than all else.
        self._keys = lru_cache(_SPLIT_KEYS_HELD)(lambda n: shards[n].content.keys.split(b"\n"))

    def describe(self, i: int) -> str:
        """Name a sample, as in "train-000003.tar: key 00001234"."""
        # The last shard that begins there or before: others that do are empty.
        number = int(np.searchsorted(self.first_P, i, side="right")) - 1
        key = self._keys(number)[i - int(self.first_P[number])].decode()
        return f"{self._shards[number].name}.tar: key {key}"
