"""Check for repeated keys, original files and images.

Legend: N samples, of one split or of all splits one after the other; G samples with one digest.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from accelssl.shards.verify.findings import DUPLICATES, Finding, Findings, Kind, Listed
from accelssl.shards.verify.sample_content import NO_LABEL, Digests

# ImageNet itself has some images in train and val; a set that was packed wrong has nearly all.
LEAK, CHANCE = 0.01, 2

Int64 = npt.NDArray[np.int64]
Describe = Callable[[int], str]


def check_repeated(digest_N2: Digests, what: str, describe: Describe, into: Listed) -> None:
    """Add each sample of a split with the digest of an earlier one; `what` names the digest."""
    for group in _groups(digest_N2):
        for i in group[1:]:
            _add(into, f"the same {what} twice in a split", describe, i, group[0])


def note_same_images(
    image_N2: Digests,
    label_N: npt.NDArray[np.int32],
    split_N: npt.NDArray[np.int32],
    splits: Sequence[str],
    describe: Describe,
    findings: Findings,
) -> str:
    """Note images of the same bytes in one split, in two, or with two labels; return the counts.

    More than a few in two splits are a leak, which is wrong: accuracy on val would mean little.
    """
    notes = findings.notes
    repeated = in_two_splits = with_two_labels = 0
    for group in _groups(image_N2):
        split_G, label_G = split_N[group], label_N[group]
        for number in np.unique(split_G):
            members = group[split_G == number]
            repeated += len(members) - 1
            for i in members[1:]:
                _add(notes, f"an image twice in {splits[number]}", describe, i, members[0])
        others = group[split_G != split_G[0]]
        if len(others):
            in_two_splits += 1
            _add(notes, "an image in two splits", describe, group[0], others[0])
        others = group[(label_G != label_G[0]) & (label_G != NO_LABEL)]
        if len(others) and label_G[0] != NO_LABEL:
            with_two_labels += 1
            _add(notes, "an image with two labels", describe, group[0], others[0])
    smallest = min((n for n in np.bincount(split_N).tolist() if n), default=0)
    if in_two_splits > max(CHANCE, LEAK * smallest):
        what = f"{in_two_splits:,} images are in two splits, of which one has {smallest:,}"
        findings.wrong(DUPLICATES, "a leak", " and ".join(splits), what)
    return (
        f"images repeated in their split: {repeated:,}; in two splits: {in_two_splits:,}; "
        f"with two labels: {with_two_labels:,}"
    )


def _add(into: Listed, kind: str, describe: Describe, i: int, other: int) -> None:
    of_kind = Kind(DUPLICATES, kind)
    into.add_lazily(of_kind, lambda: Finding(of_kind, describe(i), f"as {describe(other)}"))


def _groups(digest_N2: Digests) -> Iterator[Int64]:
    """Return the positions [G] of each repeated digest, in order; zeros are no digest."""
    place_M = np.flatnonzero(digest_N2.any(axis=1))
    digest_M2 = digest_N2[place_M]
    # A stable sort: the places of equal digests stay in order.
    order_M = np.lexsort((digest_M2[:, 1], digest_M2[:, 0]))
    ordered_M2 = digest_M2[order_M]
    is_repeat_M = np.zeros(len(place_M) + 1, bool)
    is_repeat_M[1:-1] = (ordered_M2[1:] == ordered_M2[:-1]).all(axis=1)
    # Where runs of equal digests begin, and the end of the last one.
    first_R = np.flatnonzero(~is_repeat_M)
    groups = [place_M[order_M[begin:end]] for begin, end in pairwise(first_R) if end - begin > 1]
    return iter(sorted(groups, key=lambda group: int(group[0])))
