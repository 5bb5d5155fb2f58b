"""Plots are small, well-formed SVG that names its stages and hides no value."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from accelssl.train.report.figures import (
    accuracy_figure,
    clock,
    loss_figure,
    rate_figure,
    stage_tints,
    throughput_figure,
)
from accelssl.train.report.history import Evaluation, History, Steps
from accelssl.train.report.stage_costs import stage_runs

POINTS = (Evaluation(0, 0.0, 0.0, 10.0, 12.0), Evaluation(50, 50.0, 100.0, 30.0, float("nan")))


def history(loss: npt.NDArray[np.float64], second_stage: float = 0.5) -> History:
    """A run of one unit and two seconds a step, p30 d0.5 before and p16 d0 after a change."""
    number = np.arange(1.0, len(loss) + 1)
    light = number <= len(loss) * second_stage
    steps = Steps(
        step=number,
        images=number * 10,
        spent=number,
        elapsed_s=number * 2,
        p=np.where(light, 30.0, 16.0),
        drop=np.where(light, 0.5, 0.0),
        keep=np.where(light, 32.0, 225.0),
        sample_cost=np.where(light, 1.0, 7.0),
        epoch=number / 10,
        loss=loss,
        lr=number * 1e-6,
        images_per_s=5 + 0 * number,
        image_flops=1e9 * number,
    )
    found = {"untrained": {"nn1": 9.0}, "pixels": {"nn1": 11.0}}
    return History(
        Path(), {"budget": float(len(loss))}, {}, found, steps, POINTS, {}, (), "budget", 0
    )


def words(svg: str) -> list[str]:
    return [text.strip() for text in ET.fromstring(svg).itertext() if text.strip()]


def test_every_figure_is_well_formed_scalable_and_described() -> None:
    run = history(np.linspace(5, 1, 100))
    stages = stage_runs(run)
    figures = [
        loss_figure(run, stages, "budget"),
        loss_figure(run, stages, "time"),
        accuracy_figure(run, stages, "budget"),
        accuracy_figure(run, stages, "time"),
        rate_figure(run, stages),
        throughput_figure(run, stages, 2.0),
    ]
    for svg in figures:
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox") and root.get("aria-label")
        assert root.get("width") is root.get("height") is None
        assert {"p30 d0.5", "keep 32", "p16 d0", "keep 225"} <= set(words(svg))


def test_accuracy_shows_both_figures_and_both_references() -> None:
    run = history(np.ones(100))
    shown = set(words(accuracy_figure(run, stage_runs(run), "time")))
    assert {"nn1", "knn20", "nn1 untrained", "nn1 of raw pixels"} <= shown


def test_a_narrow_band_shows_the_number_of_its_stage() -> None:
    run = history(np.ones(100), second_stage=0.9)
    shown = words(rate_figure(run, stage_runs(run)))
    assert "p30 d0.5" in shown
    assert "p16 d0" not in shown
    assert "2" in shown


def test_long_runs_make_small_figures() -> None:
    run = history(np.sin(np.arange(200_000.0)))
    assert len(loss_figure(run, stage_runs(run), "budget")) < 150_000


def test_a_peak_outside_the_frame_is_told() -> None:
    loss = np.linspace(5, 1, 1000)
    loss[700] = 4321.0
    run = history(loss)
    assert "peak 4.32k, above the frame" in words(loss_figure(run, stage_runs(run), "budget"))
    loss[700] = 6.0
    run = history(loss)
    assert "above the frame" not in loss_figure(run, stage_runs(run), "budget")


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_a_loss_without_any_range_is_drawn(value: float) -> None:
    run = history(np.full(10, value))
    assert words(loss_figure(run, stage_runs(run), "budget"))


@pytest.mark.parametrize(
    ("steps", "label"),
    [(50, "training time (s)"), (600, "training time (min)"), (9000, "training time (h)")],
)
def test_time_is_in_the_unit_that_suits_it(steps: int, label: str) -> None:
    assert clock(history(np.ones(steps)), "time").label == label


def test_a_dearer_stage_has_a_darker_band_and_the_same_stage_the_same() -> None:
    run = history(np.ones(100))
    light, plain = stage_runs(run)
    tints = stage_tints((light, plain, light))
    assert tints[0] == tints[2]
    assert int(tints[1][1:3], 16) < int(tints[0][1:3], 16)
