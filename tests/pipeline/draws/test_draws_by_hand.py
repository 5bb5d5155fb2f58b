"""Draws against their documented rules, computed sample by sample in plain Python."""

import itertools
import math

import numpy as np
import pytest

from accelssl.pipeline import views
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column, augmentation
from accelssl.pipeline.draws.drops import kept_patches
from accelssl.pipeline.draws.order import Position, epoch_order, plans
from accelssl.pipeline.draws.philox import Purpose, draw
from accelssl.pipeline.draws.windows import random_windows
from accelssl.pipeline.views import View

CROP, AUGMENT, DROP, ORDER, ROLES = range(5)
RUNS = [(0, 0), (3, 1), (2**32 - 1, 299)]  # seed, epoch
SAMPLES = [0, 1, 17, 1_281_166, 2**33 + 5]
IDS = np.array(SAMPLES)
WORD = 2**32
VIEWS = [
    *enumerate(views.simclr(240, (0.2, 1.0))),
    *enumerate(views.moco(224)),
    *enumerate(views.dino(240, n_local=2)),
]


def philox(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Compute Philox4x32-10 of Salmon et al. (SC 2011) in Python's integers."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        high_a, low_a = divmod(0xD2511F53 * a, WORD)
        high_c, low_c = divmod(0xCD9E8D57 * c, WORD)
        a, b, c, d = high_c ^ b ^ k0, low_c, high_a ^ d ^ k1, low_a
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return [a, b, c, d]


def words(run: tuple[int, int], sample: int, view: int, purpose: int, count: int) -> list[int]:
    """Return `count` words under the key (seed, epoch); the counter has block, view and sample."""
    found: list[int] = []
    for block in range(-(-count // 4)):
        found += philox([block, 256 * view + purpose, sample % WORD, sample // WORD], run)
    return found[:count]


def test_philox_in_python_gives_the_published_answer() -> None:
    """The known-answer vector of Random123 for the digits of pi."""
    counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    answer = [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert philox(counter, (0xA4093822, 0x299F31D0)) == answer


@pytest.mark.parametrize("run", RUNS)
def test_words_come_from_philox_at_the_documented_key_and_counter(run: tuple[int, int]) -> None:
    for purpose, view in itertools.product(Purpose, (0, 1, 11)):
        expected = [words(run, sample, view, int(purpose), 7) for sample in SAMPLES]
        assert draw(*run, IDS, view, purpose, 7).tolist() == expected


def test_purposes_have_the_numbers_of_version_1() -> None:
    numbers = {"CROP": CROP, "AUGMENT": AUGMENT, "DROP": DROP, "ORDER": ORDER, "ROLES": ROLES}
    assert {purpose.name: int(purpose) for purpose in Purpose} == numbers


@pytest.mark.parametrize("run", RUNS)
def test_an_epochs_order_sorts_the_samples_by_their_words(run: tuple[int, int]) -> None:
    expected = sorted(range(200), key=lambda sample: (words(run, sample, 0, ORDER, 1), sample))
    assert epoch_order(200, *run).tolist() == expected


@pytest.mark.parametrize("rank", range(3))
def test_batches_go_to_the_ranks_in_turn(rank: int) -> None:
    """Batch k of rank r of three is batch 3 k + r of the epoch's order."""
    order = epoch_order(100, 3, 1).tolist()
    planned = itertools.islice(plans(100, 7, 3, rank, 3, Position(1, 0)), 4)
    for k, plan in enumerate(planned):
        first = 7 * (3 * k + rank)
        assert plan.epoch == 1 and plan.samples_N.tolist() == order[first : first + 7]


@pytest.mark.parametrize("run", RUNS)
def test_the_patches_with_the_smallest_words_are_kept(run: tuple[int, int]) -> None:
    for view, (patches, keep) in itertools.product((0, 1), ((225, 56), (64, 32), (25, 24))):
        expected = []
        for sample in SAMPLES:
            drawn = zip(words(run, sample, view, DROP, patches), range(patches), strict=True)
            expected.append(sorted(place for _, place in sorted(drawn)[:keep]))
        assert kept_patches(*run, IDS, view, patches, keep).tolist() == expected


def window(view: View, u: list[float], height: int, width: int) -> list[int]:
    """Return the window of RandomResizedCrop; u holds ten areas, ten aspects, a row, a column."""
    low, high = view.scale
    log_low, log_high = (math.log(ratio) for ratio in view.ratio)
    for of_area, of_aspect in zip(u[:10], u[10:20], strict=True):
        area = height * width * (low + of_area * (high - low))
        aspect = math.exp(log_low + of_aspect * (log_high - log_low))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1))
            return [top, left, top + h, left + w]
    w = min(width, round(height * view.ratio[1]))
    h = min(height, round(width / view.ratio[0]))
    top, left = (height - h) // 2, (width - w) // 2
    return [top, left, top + h, left + w]


@pytest.mark.parametrize("run", RUNS)
def test_windows_follow_their_words(run: tuple[int, int]) -> None:
    sizes = [(375, 500), (500, 333), (6000, 64), (64, 6000), (224, 224)]
    for place, view in VIEWS:
        expected = []
        for sample, size in zip(SAMPLES, sizes, strict=True):
            u = [word / WORD for word in words(run, sample, place, CROP, 22)]
            expected.append(window(view, u, *size))
        found = random_windows(view, place, *run, IDS, np.array(sizes))
        assert found.tolist() == expected


def test_orders_of_the_jitter_are_numbered_as_in_a_dictionary() -> None:
    assert len(set(JITTER_ORDERS)) == 24 and sorted(JITTER_ORDERS) == list(JITTER_ORDERS)
    assert JITTER_ORDERS[0] == (
        Column.BRIGHTNESS,
        Column.CONTRAST,
        Column.SATURATION,
        Column.HUE,
    )


def change(view: View, u: list[float]) -> dict[Column, float]:
    """Return the parameters of a crop, each from one of eleven uniform numbers."""
    factors = [
        max(0.0, 1 - strength) + part * (1 + strength - max(0.0, 1 - strength))
        for strength, part in zip(view.jitter[:3], u[2:5], strict=True)
    ]
    low, high = view.blur_sigma
    return {
        Column.ORDER: int(24 * u[1]) if u[0] < view.jitter_p else -1,
        Column.BRIGHTNESS: factors[0],
        Column.CONTRAST: factors[1],
        Column.SATURATION: factors[2],
        Column.HUE: (2 * u[5] - 1) * view.jitter[3],
        Column.GRAY: u[6] < view.gray_p,
        Column.SIGMA: low + u[8] * (high - low) if u[7] < view.blur_p else 0,
        Column.SOLARIZE: u[9] < view.solarize_p,
        Column.FLIP: u[10] < view.flip_p,
    }


@pytest.mark.parametrize("run", RUNS)
def test_augmentations_follow_their_words_and_one_word_swaps_the_roles(
    run: tuple[int, int],
) -> None:
    samples = [*SAMPLES, *range(100, 120)]
    for place, view in VIEWS:
        found = augmentation(view, place, *run, np.array(samples))
        for row, sample in zip(found, samples, strict=True):
            (role,) = words(run, sample, 0, ROLES, 1)
            shown = view if view.swapped is None or role < WORD // 2 else view.swapped
            u = [word / WORD for word in words(run, sample, place, AUGMENT, 11)]
            expected = change(shown, u)
            assert row.tolist() == pytest.approx([float(expected[c]) for c in Column], abs=1e-6)
