"""Draws of a seed never change unless DRAW_VERSION is raised."""

import hashlib
import subprocess
import sys

import numpy as np

from accelssl.pipeline import views
from accelssl.pipeline.draws.augmentation import augmentation
from accelssl.pipeline.draws.draw_version import DRAW_VERSION, decoder_versions
from accelssl.pipeline.draws.drops import kept_patches
from accelssl.pipeline.draws.order import Position, epoch_order, plans
from accelssl.pipeline.draws.windows import random_windows

# Never change an entry: a changed draw is a new version.
DIGESTS = {1: "1d4ce1e0e4af1b9ef52040e4fee8c51b9c26bd26c7ee2f53e8eef6a680dff037"}
SAMPLES = np.array([0, 1, 17, 1_281_166, 2**33 + 5])
SIZES = np.array([[375, 500], [500, 333], [6000, 64], [1, 1], [224, 224]])


def digest_of_the_draws() -> str:
    """Hash orders, batches, windows, augmentations and drops of several seeds, epochs and views."""
    drawn = hashlib.sha256()
    for seed, epoch in ((0, 0), (3, 1), (2**32 - 1, 299)):
        drawn.update(epoch_order(1000, seed, epoch).astype("<i8").tobytes())
        plan = next(plans(1000, 7, seed, 2, 3, Position(epoch, 4)))
        drawn.update(plan.samples_N.astype("<i8").tobytes())
        for index, view in enumerate(views.simclr(240, (0.2, 1.0))):
            windows = random_windows(view, index, seed, epoch, SAMPLES, SIZES)
            drawn.update(windows.astype("<i8").tobytes())
            rows = augmentation(view, index, seed, epoch, SAMPLES)
            # To 20 bits: the last ones are the processor's business.
            drawn.update(np.rint(rows * 2.0**20).astype("<i8").tobytes())
            for patches, keep in ((225, 56), (64, 32), (25, 25)):
                kept = kept_patches(seed, epoch, SAMPLES, index, patches, keep)
                drawn.update(kept.astype("<i8").tobytes())
    return drawn.hexdigest()


def test_the_draws_are_those_of_their_version() -> None:
    digest = digest_of_the_draws()
    assert DIGESTS.get(DRAW_VERSION) == digest, (
        f"The draws of version {DRAW_VERSION} have changed. Every run would see other data: "
        "other orders, crops, colours or kept patches. Most likely this is a fault: "
        "test_draws_by_hand.py names the rule that is broken. Mend the rule and leave this digest. "
        "A change on purpose is a new draw version: raise DRAW_VERSION in "
        f"pipeline/draws/draw_version.py and add {digest} under the new number. "
        "Never change an entry."
    )


def test_versions_never_share_their_draws() -> None:
    assert len(set(DIGESTS.values())) == len(DIGESTS) and max(DIGESTS) == DRAW_VERSION


def test_the_first_draws_of_seed_0_are_known_by_value() -> None:
    """Unlike the digest, these values can be read."""
    view = views.simclr(240)[0]
    assert epoch_order(10, 0, 0).tolist() == [3, 9, 7, 6, 1, 4, 5, 8, 0, 2]
    windows = random_windows(view, 0, 0, 0, SAMPLES[:2], SIZES[:2])
    assert windows.tolist() == [[24, 6, 345, 267], [143, 17, 474, 297]]
    assert kept_patches(0, 0, SAMPLES[:1], 0, 25, 6).tolist() == [[1, 5, 8, 17, 18, 23]]


def test_the_decoders_versions_are_those_they_tell_themselves() -> None:
    code = "import nvidia.dali\nprint(nvidia.dali.__version__)"
    dali = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert decoder_versions()["DALI"] == dali.stdout.strip()
    assert decoder_versions()["nvImageCodec"][0].isdigit()
