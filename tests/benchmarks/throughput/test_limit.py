"""What is named as the limit is the part whose speed would help."""

from dataclasses import replace

import pytest

from accelssl.benchmarks.throughput.limit import Limit, Parts, limit

WELL_FED = Parts(
    step_s=0.100,
    live_s=0.102,
    launch_s=0.005,
    loader_s=0.030,
    decoder_s=0.028,
    copy_s=0.004,
    op_s=0.001,
)


def test_a_live_run_at_97_percent_is_limited_by_its_step() -> None:
    assert limit(WELL_FED) == "step"
    assert limit(replace(WELL_FED, live_s=0.100 / 0.9701)) == "step"
    assert limit(replace(WELL_FED, live_s=0.100 / 0.9699)) != "step"


def test_a_host_that_takes_as_long_as_the_gpu_is_the_limit_however_the_data_comes() -> None:
    assert limit(replace(WELL_FED, launch_s=0.0901)) == "launch"
    assert limit(replace(WELL_FED, launch_s=0.0901, live_s=0.2)) == "launch"
    assert limit(replace(WELL_FED, launch_s=0.0899)) == "step"


@pytest.mark.parametrize(
    ("decoder_s", "copy_s", "op_s", "expected"),
    [
        (0.195, 0.02, 0.01, "decoder"),
        (0.195, 0.15, 0.01, "copy"),
        (0.060, 0.02, 0.19, "op"),
        (None, None, 0.01, "decoder"),  # all that is known of the rest is the loader's own time
    ],
)
def test_a_loader_that_is_no_faster_than_the_run_is_limited_by_its_longest_part(
    decoder_s: float | None, copy_s: float | None, op_s: float, expected: Limit
) -> None:
    parts = Parts(0.1, 0.2, 0.005, 0.198, decoder_s, copy_s, op_s)
    assert limit(parts) == expected


def test_a_decoder_slower_than_the_step_is_the_limit_though_sharing_makes_both_slower() -> None:
    parts = Parts(0.0161, 0.0201, 0.0013, 0.0185, 0.0169, 0.0022, 0.0005)
    assert limit(parts) == "decoder"
    assert limit(replace(parts, decoder_s=0.0160)) == "copy"
    assert limit(replace(parts, copy_s=0.0085)) == "copy"
    assert limit(replace(parts, op_s=0.0021)) == "op"


@pytest.mark.parametrize(
    ("copy_s", "op_s", "expected"),
    [(0.001, 0.0101, "op"), (0.0101, 0.0099, "copy"), (0.0099, 0.0099, "decoder")],
)
def test_a_fast_loader_that_delays_the_step_is_named_by_what_explains_half_of_the_delay(
    copy_s: float, op_s: float, expected: Limit
) -> None:
    parts = replace(WELL_FED, live_s=0.120, copy_s=copy_s, op_s=op_s)  # a delay of 20 ms
    assert limit(parts) == expected


def test_a_cpu_has_neither_launches_nor_copies() -> None:
    parts = Parts(step_s=1.0, live_s=1.4, loader_s=0.4, decoder_s=0.1, op_s=0.3)
    assert limit(parts) == "op"


def test_a_delay_that_no_part_explains_leaves_the_step() -> None:
    parts = Parts(step_s=1.414, live_s=1.638, loader_s=0.2, decoder_s=0.009, op_s=0.103)
    assert limit(parts) == "step"
