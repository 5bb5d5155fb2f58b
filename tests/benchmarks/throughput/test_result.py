"""A result's ratios, goals and JSON, and that its page, table and plot have every figure."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from accelssl.benchmarks.matrix_peak import MatrixPeak
from accelssl.benchmarks.result_files import ResultFiles
from accelssl.benchmarks.throughput.result import GOAL_MODEL, ThroughputBench
from accelssl.benchmarks.throughput.row import (
    COLD_LOADER,
    DECODER,
    LOADER,
    TORCHVISION,
    Row,
    SourceTime,
)
from accelssl.benchmarks.throughput.throughput import write_page
from accelssl.benchmarks.timing import Timing
from accelssl.train.config.cost import simclr_cost

KEPT = {(16, 0.0): 225, (16, 0.75): 56, (30, 0.5): 32, (48, 0.5): 12}


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.9 * seconds, 1.1 * seconds, 5)


def row(p: int, drop: float, step_s: float, live_s: float, model: str = GOAL_MODEL) -> Row:
    keep = KEPT[p, drop]
    return Row(
        model=model,
        p=p,
        drop=drop,
        keep=keep,
        pairs=512,
        sample_cost=simclr_cost(keep, keep),
        flops=30_000_000_000_000,
        synthetic=timing(step_s),
        launch_s=0.00412,
        first_s=31.25,
        op=timing(0.00071),
        live=timing(live_s),
        cpu_cores=3.25,
        memory_bytes=41_200_000_000,
    )


@pytest.fixture
def bench() -> ThroughputBench:
    """Just within the goals. The loader makes 19 of 20 images that the decoder gives."""
    rows = (
        row(16, 0.0, 0.300, 0.3019),
        row(16, 0.75, 0.078, 0.0799),
        row(30, 0.5, 0.048, 0.0499),
        row(48, 0.5, 0.0266, 0.0285),
    )
    sources = (
        SourceTime(COLD_LOADER, 16, 0.0, 512, timing(0.512), 1.5),
        SourceTime(LOADER, 16, 0.0, 512, timing(0.5119 / 19), 2.5),
        SourceTime(DECODER, None, None, 512, timing(0.512 / 20), 2.75),
        SourceTime(TORCHVISION, None, None, 496, timing(0.496 / 0.38), None),
    )
    environment = {"device": "NVIDIA H100 80GB HBM3", "started": "2026-11-28T10:00:00"}
    peak = MatrixPeak("bfloat16", 8192, timing(2 * 8192**3 / 700e12))
    return ThroughputBench(
        environment, "8,192 files", 512, None, peak, 0.0044, sources, rows, ("A note.",), 500.0
    )


def test_rates_count_a_pair_once_and_its_tokens_twice() -> None:
    found = row(30, 0.5, 0.048, 0.050)
    assert found.images_per_s == pytest.approx(10_240)
    assert found.tokens_per_s == pytest.approx(10_240 * 64)
    assert found.units_per_s == pytest.approx(10_240 * 6 * 32 / 196)
    assert found.of_synthetic == pytest.approx(0.96)
    assert found.tax_s == pytest.approx(0.002)
    assert found.flops_per_s == pytest.approx(625e12)


def test_speed_ups_are_against_the_uncompressed_live_run_of_the_same_model(
    bench: ThroughputBench,
) -> None:
    others = (row(16, 0.0, 0.1, 0.11, "small"), row(30, 0.5, 0.02, 0.022, "small"))
    bench = replace(bench, rows=(*bench.rows, *others))
    large, small = bench.rows[2], bench.rows[5]
    assert bench.counted(large) == pytest.approx(225 / 32)
    assert bench.realised(large) == pytest.approx(0.3019 / 0.0499)
    assert bench.realised_of_counted(large) == pytest.approx(0.3019 / 0.0499 * 32 / 225)
    assert bench.realised(small) == pytest.approx(5)
    assert bench.of_peak(large) == pytest.approx(625 / 700)


def test_without_an_uncompressed_row_ratios_are_left_out(bench: ThroughputBench) -> None:
    bench = replace(bench, rows=bench.rows[1:])
    found = bench.rows[0]
    assert bench.counted(found) is bench.realised(found) is bench.realised_of_counted(found) is None
    assert "realised" not in str(bench)
    assert "| 16 | 0.75 | 56 | 6,408 |" in bench.to_markdown("plot.png")


def test_a_step_alone_has_no_live_figures(bench: ThroughputBench) -> None:
    alone = tuple(replace(r, live=None) for r in bench.rows)
    bench = replace(bench, rows=alone, only="step", sources=(), copy_s=None)
    found = bench.rows[2]
    assert found.of_synthetic is found.tax_s is bench.realised(found) is None
    assert bench.limit(found) is None
    assert found.images_per_s == pytest.approx(512 / 0.048)
    assert bench.counted(found) == pytest.approx(225 / 32)
    plain = bench.rows[0].synthetic.median_s
    assert bench.alone_of_counted(found) == pytest.approx(plain / 0.048 / (225 / 32))
    assert bench.goals() == []
    assert "step/counted: " in str(bench)
    assert "realised:" not in str(bench) and "tax" not in str(bench)


def test_a_live_run_that_beats_its_step_is_doubted(bench: ThroughputBench) -> None:
    assert bench.doubts() == []
    odd = replace(bench, rows=(row(30, 0.5, 0.048, 0.0465), row(48, 0.5, 0.048, 0.040)))
    (doubt,) = odd.doubts()
    assert f"{GOAL_MODEL} p48 d0.5" in doubt
    assert "120%" in doubt
    assert doubt in str(odd).splitlines()
    assert f"- {doubt}" in odd.to_markdown("plot.png").splitlines()


def test_what_limits_is_not_told_from_too_little(bench: ThroughputBench) -> None:
    slow = row(30, 0.5, 0.048, 0.060)
    assert bench.limit(slow) is not None
    assert replace(bench, sources=()).limit(slow) is None
    assert replace(bench, sources=()).limit(row(30, 0.5, 0.048, 0.049)) == "step"


def test_the_loader_that_makes_most_nearly_as_many_tokens_judges_a_row(
    bench: ThroughputBench,
) -> None:
    slow = SourceTime(LOADER, 48, 0.5, 512, timing(0.0598), 3.0)
    bench = replace(bench, sources=(*bench.sources, slow))
    # A loader as slow as the run is its limit; one of 27 ms only delays it.
    assert bench.limit(replace(row(48, 0.5, 0.0266, 0.060), op=timing(0.02))) == "decoder"
    assert bench.limit(replace(row(16, 0.0, 0.0266, 0.060), op=timing(0.02))) == "op"


def test_goals_are_met_just_within_their_limits(bench: ThroughputBench) -> None:
    assert [goal.verdict for goal in bench.goals()] == ["met"] * 6


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (0, row(16, 0.75, 0.0399, 0.0410)),
        (1, row(30, 0.5, 0.0240, 0.0251)),
        (2, row(48, 0.5, 0.0130, 0.0141)),
        (3, row(16, 0.0, 0.300, 0.3021)),
    ],
)
def test_goals_of_the_live_run_are_missed_just_beyond_their_limits(
    bench: ThroughputBench, number: int, changed: Row
) -> None:
    others = (r for r in bench.rows if (r.p, r.drop) != (changed.p, changed.drop))
    verdicts = [goal.verdict for goal in replace(bench, rows=(changed, *others)).goals()]
    assert verdicts == ["met" if i != number else "not met" for i in range(6)]


@pytest.mark.parametrize(("number", "source"), [(4, DECODER), (5, TORCHVISION)])
def test_goals_of_the_loader_are_missed_just_beyond_their_limits(
    bench: ThroughputBench, number: int, source: str
) -> None:
    faster = tuple(
        replace(s, time=timing(0.999 * s.time.median_s)) if s.source == source else s
        for s in bench.sources
    )
    verdicts = [goal.verdict for goal in replace(bench, sources=faster).goals()]
    assert verdicts == ["met" if i != number else "not met" for i in range(6)]


def test_other_models_have_no_goals_and_a_cpu_has_none_at_all(bench: ThroughputBench) -> None:
    small = tuple(replace(r, model="small") for r in bench.rows)
    assert [goal.is_met for goal in replace(bench, rows=small).goals()][:4] == [None] * 4
    assert replace(bench, environment={"device": "cpu"}).goals() == []


def test_a_result_survives_json(bench: ThroughputBench) -> None:
    assert ThroughputBench.from_json(bench.to_json()) == bench
    assert json.loads(bench.to_json())["rows"][0]["memory_bytes"] == 41_200_000_000
    bare = replace(bench, rows=(replace(bench.rows[0], live=None, op=None),), peak=None)
    assert ThroughputBench.from_json(bare.to_json()) == bare


def test_the_page_has_every_figure(bench: ThroughputBench) -> None:
    page = bench.to_markdown("plot.png")
    rates = (
        "| 30 | 0.5 | 32 | 10,261 | 656,673 | 10,051 | 7.03 | 6.05 | 0.860 | 0.889 | 0.962 | copy |"
    )
    assert rates in page
    times = (
        "| 30 | 0.5 | 48.00 | 43.20 to 52.80 | 49.90 | 44.91 to 54.89 | 1.90 | 0.71 | 4.12 | 31.2 "
        "| 625 | 89.3% | 41.2 | 3.2 |"
    )
    assert times in page
    assert "| loader, cold files, p16 d0 | 1,000 | 512.00 | 460.80 to 563.20 | 512 | 1.5 |" in page
    assert "| torchvision DataLoader | 380 | 1,305.26 | 1,174.74 to 1,435.79 | 496 |  |" in page
    assert "files reach the GPU in 4.40 ms" in page
    assert "Matrix peak: 700 TFLOP/s (bfloat16, 8192 x 8192 in 1.57 ms)." in page
    assert "- device: NVIDIA H100 80GB HBM3" in page
    assert "Batches of 512 pairs; 8,192 files. The whole took 500 s." in page
    assert "- A note." in page
    assert page.count(": met") == 0  # the goals are a table there
    assert page.count("| met | worst") == 6


def test_the_terminal_has_a_line_for_each_row_and_goal(bench: ThroughputBench) -> None:
    lines = str(bench).splitlines()
    first = ["16", "0", "225", "1,696", "763,167", "11,681", "1.00", "1.00", "1.000"]
    assert [*first, "1.000", "0.994", "step"] in [line.split() for line in lines]
    assert sum(": met." in line for line in lines) == 6
    assert "A note." in lines


def test_page_figures_and_plot_are_named_after_card_and_month(
    bench: ThroughputBench, tmp_path: Path
) -> None:
    path = write_page(bench, ResultFiles(tmp_path / "results"))
    assert path == tmp_path / "results" / "throughput_h100_202611.md"
    assert path.read_text() == bench.to_markdown("throughput_h100_202611.png")
    assert ThroughputBench.from_json(path.with_suffix(".json").read_text()) == bench
    with Image.open(path.with_suffix(".png")) as plot:
        assert plot.width > 500
    assert "(throughput_h100_202611.png)" in path.read_text()
    second = write_page(bench, ResultFiles(tmp_path / "results"))
    assert second.name == "throughput_h100_202611_2.md"
    assert "(throughput_h100_202611_2.png)" in second.read_text()


def test_a_part_alone_does_not_write_over_the_whole(bench: ThroughputBench, tmp_path: Path) -> None:
    bench = replace(bench, only="loader", rows=(), peak=None)
    assert write_page(bench, ResultFiles(tmp_path)).name == "throughput_loader_h100_202611.md"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".md"]
