"""The table of deviations: its figures within the bounds of test_reference.py, and its honesty."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.compress import deviations, op
from accelssl.pipeline.compress.deviation_steps import STEPS, sample_pictures
from accelssl.pipeline.compress.deviations import Deviation, Deviations, augmentation_deviations

pytest.importorskip("torchvision")
EIGHT_BITS, FLOATS, EXACT = 2.0, 0.1, 1e-3  # the bounds of test_reference.py, in levels


@pytest.fixture(scope="module")
def table() -> Deviations:
    return augmentation_deviations("torch")


def rows(table: Deviations, name: str) -> list[Deviation]:
    found = [row for row in table.rows if row.step.split(",")[0].split(" ")[0] == name]
    assert found
    return found


def test_every_step_is_torchvisions_in_float(table: Deviations) -> None:
    assert len(table.rows) == len(STEPS)
    assert max(row.floats.largest for row in table.rows) <= FLOATS


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue", "gray", "blur"])
def test_single_steps_are_torchvisions_in_8_bits_within_two_levels(
    table: Deviations, name: str
) -> None:
    assert all(
        row.eight_bits.mean <= row.eight_bits.largest <= EIGHT_BITS for row in rows(table, name)
    )


@pytest.mark.parametrize("name", ["solarize", "flip"])
def test_solarize_and_flip_are_everybodys(table: Deviations, name: str) -> None:
    for row in rows(table, name):
        assert max(gap.largest for gap in (row.eight_bits, row.floats, row.pillow)) <= EXACT


def test_cutting_off_the_fraction_is_what_sets_brightness_apart(table: Deviations) -> None:
    """Multiples of 0.6 have fractions up to 0.8, and these pictures have every level."""
    assert len(np.unique(sample_pictures())) == 256
    below = rows(table, "brightness")[0]
    levels = sample_pictures().astype(np.float64) * 0.6
    fractions = levels - np.floor(levels + 1e-6)
    assert below.step == "brightness 0.6"
    assert below.eight_bits.largest == pytest.approx(fractions.max(), abs=1e-3)
    assert below.eight_bits.mean == pytest.approx(fractions.mean(), abs=1e-3)
    assert below.pillow.largest == pytest.approx(fractions.max(), abs=1e-3)


def test_pillows_blur_differs_most_at_the_border(table: Deviations) -> None:
    """As the reason in the table says: it repeats pixels there, where the op mirrors them."""
    from PIL import Image, ImageFilter
    from scipy.ndimage import gaussian_filter

    gaps, insides = [], []
    for picture in sample_pictures():
        blurred = Image.fromarray(picture).filter(ImageFilter.GaussianBlur(1.0))
        mirrored = gaussian_filter(picture.astype(np.float64), (1, 1, 0), mode="mirror", radius=8)
        gaps.append(np.abs(np.asarray(blurred) - mirrored))
        insides.append(gaps[-1][12:-12, 12:-12])
    (row,) = (row for row in rows(table, "blur") if row.step.endswith("sigma 1"))
    assert row.pillow.largest == pytest.approx(np.max(gaps), abs=0.02)
    assert row.pillow.mean == pytest.approx(np.mean(gaps), abs=0.002)
    assert np.max(insides) < row.pillow.largest / 5


def test_a_wrong_implementation_shows(monkeypatch: pytest.MonkeyPatch, table: Deviations) -> None:
    right = op.augment_patchify

    def too_bright(*arguments: object) -> Tensor:
        tokens: Tensor = right(*arguments)  # type: ignore[arg-type]
        return tokens + 5 / 255 / 0.229

    monkeypatch.setattr(deviations, "augment_patchify", too_bright)
    wrong = augmentation_deviations("torch")
    # Five levels in red, as its standard deviation is 0.229; a little less in the others.
    assert all(4.8 < row.floats.largest < 5.2 for row in wrong.rows)


def test_pictures_are_the_same_each_time_and_of_five_sorts() -> None:
    smooth, noise, dark, bright, saturated = sample_pictures()
    assert np.array_equal(sample_pictures()[1], noise)
    neighbours = [np.abs(np.diff(x.astype(int), axis=1)).mean() for x in (smooth, noise)]
    assert neighbours[0] < 20 < 80 < neighbours[1]
    assert dark.max() < 32
    assert bright.min() > 223
    assert set(np.unique(saturated)) == {0, 255}


def test_the_table_names_each_step_and_reason_once(table: Deviations) -> None:
    text = str(table)
    figures, _, reasons = text.partition("\n\n")
    assert text.startswith("torch on cpu")
    for row in table.rows:
        assert sum(line.startswith(row.step + " ") for line in figures.splitlines()) == 1
        assert reasons.count(row.why) == 1
    assert max(map(len, figures.splitlines())) <= 100
    assert f"{table.rows[0].eight_bits.largest:.2f}" in figures


def test_without_torchvision_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2.functional", None)
    with pytest.raises(UserError, match="torchvision") as error:
        augmentation_deviations("torch")
    assert "pip install torchvision" in error.value.remedy


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_what_needs_a_gpu_is_refused_by_name_on_a_cpu(
    implementation: op.Implementation,
) -> None:
    with pytest.raises(UserError, match=f"{implementation} .* cpu"):
        augmentation_deviations(implementation, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_a_gpu_deviates_as_little(table: Deviations, implementation: op.Implementation) -> None:
    found = augmentation_deviations(implementation, torch.device("cuda"))
    for ours, definition in zip(found.rows, table.rows, strict=True):
        for name in ("eight_bits", "floats", "pillow"):
            ours_gap, definition_gap = getattr(ours, name), getattr(definition, name)
            assert ours_gap.largest == pytest.approx(definition_gap.largest, abs=0.01)
            assert ours_gap.mean == pytest.approx(definition_gap.mean, abs=0.01)
