"""Check that the keys of a split count up and that no key is missing.

accelssl numbers the images of a split from 0 in the order of the set, and skips the number of an
image that did not decode.

Legend: N samples of a split, U different numbers.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from accelssl.shards.verify.findings import INDEX, Findings
from accelssl.shards.verify.manifest_checks import ExpectedSet
from accelssl.shards.verify.sample_content import Content

_NO_NUMBER = -1
_MOST_DIGITS = 18  # fits an int64

Int64 = npt.NDArray[np.int64]


def check_key_numbers(
    expected: ExpectedSet,
    split: str,
    contents: Sequence[Content],
    describe: Callable[[int], str],
    findings: Findings,
) -> None:
    """Find keys out of order, and more numbers skipped than the manifest says.

    `contents` are those of the shards of the split that could be read, in order. Keys that are no
    numbers, and those that occurred before, are for other checks.
    """
    number_N = np.concatenate([_numbers(content) for content in contents])
    place_N = np.flatnonzero(number_N != _NO_NUMBER)
    if not len(place_N):
        return
    number_U, first_U = np.unique(number_N[place_N], return_index=True)
    in_place_U = place_N[np.sort(first_U)]
    in_order_U = number_N[in_place_U]
    for at in np.flatnonzero(in_order_U[1:] < in_order_U[:-1]).tolist():
        before, here = int(in_place_U[at]), int(in_place_U[at + 1])
        what = f"it comes after {describe(before)}"
        findings.wrong(INDEX, "keys are out of order", describe(here), what)
    # Where there are more or fewer samples than the manifest says, that is a problem of its own.
    is_whole = expected.written.get(split) == len(number_N)
    skipped = int(number_U[-1]) + 1 - len(number_U)
    quarantined = expected.quarantined.get(split, skipped)
    if is_whole and skipped > quarantined:
        what = (
            f"{skipped:,} of the numbers up to {number_U[-1]} are no keys; "
            f"by the manifest {quarantined:,} images did not decode"
        )
        findings.wrong(INDEX, "more keys are skipped than images", split, what)


def _numbers(content: Content) -> Int64:
    """Return the keys [N] as numbers."""
    keys = content.keys.split(b"\n") if len(content.label_N) else []
    is_number = (key.isdigit() and len(key) <= _MOST_DIGITS for key in keys)
    return np.array(
        [int(key) if ok else _NO_NUMBER for key, ok in zip(keys, is_number, strict=True)], np.int64
    )
