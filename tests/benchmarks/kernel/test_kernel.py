"""The kernel benchmark: what it counts, what it compares with, and how it tells of it."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.benchmarks import timing
from accelssl.benchmarks.kernel import measurement
from accelssl.benchmarks.kernel.inputs import (
    KINDS,
    SIZE,
    InputPool,
    Inputs,
    moved_bytes,
    pixels_read,
)
from accelssl.benchmarks.kernel.kernel import bench_kernel, write_page
from accelssl.benchmarks.kernel.page import card
from accelssl.benchmarks.kernel.peers import StaticChain
from accelssl.benchmarks.kernel.result import EAGER, MASKED, KernelBench, KernelTime, PeerTime
from accelssl.benchmarks.result_files import ResultFiles
from accelssl.benchmarks.timing import Copies, Timing, kernel_seconds, time_captured, time_launched
from accelssl.errors import UserError
from accelssl.pipeline.compress import op, reference
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column, identity

CPU = torch.device("cpu")


def random_inputs(n: int, side: int, p: int, kept: int, seed: int) -> Inputs:
    """Every order of the jitter and none; each of the other steps in about half of the crops."""
    rng = np.random.default_rng(seed)
    crops = torch.from_numpy(rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8))
    params = identity(n)
    params[:, Column.ORDER] = np.arange(n) % (len(JITTER_ORDERS) + 1) - 1
    params[:, Column.BRIGHTNESS : Column.HUE] = rng.uniform(0.6, 1.4, (n, 3))
    params[:, Column.HUE] = rng.uniform(-0.5, 0.5, n)
    for column in (Column.GRAY, Column.SOLARIZE, Column.FLIP):
        params[:, column] = rng.integers(0, 2, n)
    params[:, Column.SIGMA] = rng.integers(0, 2, n) * rng.uniform(0.1, 2, n)
    rows = [rng.permutation((side // p) ** 2)[:kept] for _ in range(n)]
    return Inputs(crops, torch.from_numpy(params), torch.from_numpy(np.stack(rows)))


def pixels_read_one_by_one(params: Tensor, keep: list[int], p: int, size: int) -> int:
    """The pixels that a crop's tokens depend on, each looked up where it is read."""
    if params[Column.ORDER] >= 0:
        return size * size
    halo, read = 8 if params[Column.SIGMA] > 0 else 0, set()
    for place in keep:
        top, left = place // (size // p) * p, place % (size // p) * p
        for y in range(top - halo, top + p + halo):
            for x in range(left - halo, left + p + halo):
                row = size - 1 - abs(size - 1 - abs(y))
                column = size - 1 - abs(size - 1 - abs(x))
                read.add((row, size - 1 - column if params[Column.FLIP] else column))
    return len(read)


@pytest.mark.parametrize(("p", "side", "kept"), [(16, 96, 5), (24, 72, 4), (30, 60, 1)])
def test_pixels_that_must_be_read_are_those_that_a_loop_looks_up(
    p: int, side: int, kept: int
) -> None:
    inputs = random_inputs(16, side, p, kept, seed=p)
    inputs.params_NP[4:, Column.ORDER] = -1  # most are not jittered
    expected = [
        pixels_read_one_by_one(params, keep.tolist(), p, side)
        for params, keep in zip(inputs.params_NP, inputs.keep_idx_NL, strict=True)
    ]
    assert pixels_read(inputs.params_NP, inputs.keep_idx_NL, p, side).tolist() == expected
    rest = 16 * 9 * 4 + 16 * kept * 8 + 16 * kept * 768 * 2
    assert moved_bytes(inputs, p) == 3 * sum(expected) + rest


def test_a_patch_kept_twice_is_read_once() -> None:
    keep, params = torch.tensor([[3, 3, 3]]), torch.from_numpy(identity(1))
    assert pixels_read(params, keep, 16, 96).tolist() == [256]


def test_the_three_kinds_of_inputs_differ_in_what_they_are_named_after() -> None:
    pool = InputPool(64, CPU)
    moves, sharp, blurred = (pool.sets(Compression(16, 0.75), kind) for kind in KINDS)
    assert len(moves) == 2
    assert not torch.equal(moves[0].crops_NHWC, moves[1].crops_NHWC)
    only_flips = moves[0].params_NP.clone()
    only_flips[:, Column.FLIP] = 0
    assert torch.equal(only_flips, torch.from_numpy(identity(64)))
    assert 16 < int((blurred[0].params_NP[:, Column.SIGMA] > 0).sum()) < 48
    without = blurred[0].params_NP.clone()
    without[:, Column.SIGMA] = 0
    assert torch.equal(sharp[0].params_NP, without)
    assert torch.equal(sharp[0].params_NP[:, Column.FLIP], moves[0].params_NP[:, Column.FLIP])


@pytest.mark.parametrize("p", [16, 24])
def test_the_chain_of_masks_gives_the_definitions_tokens_for_all_orders(p: int) -> None:
    inputs = random_inputs(50, 48, p, 2, seed=p + 1)
    batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
    tokens = StaticChain.of([inputs.params_NP], p)(*batch)
    expected = reference.augment_patchify(*batch, p)
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-4)


def test_the_chain_of_masks_serves_every_batch_it_was_made_for() -> None:
    few, many = (random_inputs(12, 48, 16, 3, seed) for seed in (1, 2))
    few.params_NP[1:, Column.SIGMA] = 0
    chain = StaticChain.of([few.params_NP, many.params_NP], 16)
    assert chain.blurred == int((many.params_NP[:, Column.SIGMA] > 0).sum()) > 1
    for inputs in (few, many):
        batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
        expected = reference.augment_patchify(*batch, 16)
        torch.testing.assert_close(chain(*batch), expected, rtol=0, atol=1e-4)


def test_a_compiler_takes_the_chain_of_masks_whole() -> None:
    inputs = random_inputs(4, 48, 24, 2, seed=5)
    batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
    chain = StaticChain.of([inputs.params_NP], 24)
    with torch.no_grad():
        compiled = torch.compile(chain, backend="eager", fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(*batch), chain(*batch), rtol=0, atol=1e-6)


def test_the_chain_of_masks_leaves_out_what_no_crop_asks_for() -> None:
    params = torch.from_numpy(identity(3))
    params[:, Column.FLIP] = 1
    chain = StaticChain.of([params], 16)
    assert (chain.jitters, chain.grays, chain.blurred, chain.solarizes) == (False, False, 0, False)


@pytest.mark.parametrize("p", [16, 30])
def test_dalis_chain_gives_the_definitions_tokens_but_for_its_colours(p: int) -> None:
    pytest.importorskip("nvidia.dali")
    from accelssl.benchmarks.kernel.dali_peer import DaliChain

    sets = [random_inputs(6, 3 * p, p, 3, seed) for seed in (1, 2)]
    for inputs in sets:
        inputs.params_NP[:, Column.ORDER] = -1
        inputs.params_NP[:, Column.GRAY] = inputs.params_NP[:, Column.SOLARIZE] = 0
    chain = DaliChain(sets, p, torch.float32, threads=1)
    for inputs in (*sets, *sets):
        batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
        gap = (chain() - reference.augment_patchify(*batch, p)).abs().amax((1, 2))
        is_blurred = inputs.params_NP[:, Column.SIGMA] > 0
        assert 0 < int(is_blurred.sum()) < 6
        assert gap[~is_blurred].max() < 1e-5
        # DALI rounds blurred pixels to 8 bits: half a level, which shrinking can triple.
        assert gap[is_blurred].max() < 3 * 0.51 / 255 / 0.224


def test_dali_jitters_just_the_crops_that_the_op_jitters() -> None:
    pytest.importorskip("nvidia.dali")
    from accelssl.benchmarks.kernel.dali_peer import DaliChain

    inputs = random_inputs(4, 48, 16, 9, seed=3)
    inputs.params_NP[:] = torch.from_numpy(identity(4))
    inputs.params_NP[:, Column.BRIGHTNESS] = 0.5
    inputs.params_NP[:, Column.CONTRAST : Column.HUE] = 1
    inputs.params_NP[:2, Column.ORDER] = 0
    batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
    gap = DaliChain([inputs], 16, torch.float32)() - reference.augment_patchify(*batch, 16)
    assert gap.abs().max() < 1.01 / 255 / 0.224  # brightness alone is the same in both


def test_launched_calls_are_timed_one_by_one() -> None:
    calls = [lambda: time.sleep(0.004), lambda: time.sleep(0.008)]
    measured = time_launched(calls, CPU, runs=5)
    assert measured.runs == 5
    assert 0.006 <= measured.low_s <= measured.median_s <= measured.high_s < 0.05
    assert time_captured(calls, CPU, runs=1).median_s >= 0.006  # the same where no graphs are


def test_a_timing_has_the_median_and_the_outer_tenths() -> None:
    seconds = np.random.default_rng(0).permutation(np.arange(11)).tolist()
    assert Timing.of(seconds) == Timing(5, 1, 9, 11)


def test_copies_move_what_they_are_asked_to() -> None:
    copies = Copies(CPU, runs=3)
    small_s, large_s = copies.seconds(2**16, 2), copies.seconds(2**26, 2)
    assert 10 * small_s < large_s  # a thousand times the bytes
    whole_s = copies.seconds(2 * 2**26, 1)
    assert copies.bytes_per_s == pytest.approx(2 * 2**26 / whole_s)
    assert copies.seconds(20 * 2**26, 1) == pytest.approx(10 * whole_s)  # beyond its memory


def test_kernels_are_told_apart_by_name_and_call(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["gray", "tokens", "tokens", "other"]
    events = [
        SimpleNamespace(
            name=name,
            time_range=SimpleNamespace(start=10 * call + i),
            device_time=100 * call + 10 * i + 1,
        )
        for call in range(3)
        for i, name in enumerate(names)
    ]

    class Recorded:
        def __init__(self, **options: object) -> None: ...
        def __enter__(self) -> "Recorded":
            return self

        def __exit__(self, *error: object) -> None: ...
        def events(self) -> list[SimpleNamespace]:
            return events[::-1]

    monkeypatch.setattr("torch.profiler.profile", Recorded)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = [lambda: None] * 3
    found = kernel_seconds(calls, ("gray", "tokens"))
    assert found is not None
    assert [seconds["gray"] for seconds in found] == pytest.approx([1e-6, 101e-6, 201e-6])
    assert [seconds["tokens"] for seconds in found] == pytest.approx([32e-6, 232e-6, 432e-6])
    del events[1]
    assert kernel_seconds(calls, ("gray", "tokens")) is None
    assert kernel_seconds(calls, ("absent",)) is None


def time_of(crops: int, p: int, drop: float, kind: str, seconds: float, moved: int) -> KernelTime:
    timing_s = Timing(seconds, 0.9 * seconds, 1.1 * seconds, 20)
    return KernelTime("cuda", crops, p, drop, kind, timing_s, 1e-5, 2e-5, moved, 0.5 * seconds)


@pytest.fixture
def bench() -> KernelBench:
    """At 1e12 bytes/s of a copy: 80% at p = 16, 60% at p = 30, both at the limit."""
    times = (
        time_of(1024, 16, 0.75, "moves", 1e-4, 80_000_000),
        time_of(1024, 30, 0.75, "no blur", 1e-4, 60_000_000),
        time_of(1024, 30, 0.75, "blur", 1e-3, 10_000_000),
        time_of(512, 30, 0.75, "blur", 5e-3, 10_000_000),  # not the batch of the goal
    )
    slower = replace(times[0], implementation="triton", time=Timing(1, 1, 1, 20))
    peer = PeerTime(EAGER, 1024, 30, 0.75, "blur", Timing(4e-3, 3e-3, 5e-3, 5), 4.0)
    environment = {"device": "NVIDIA H100 80GB HBM3", "started": "2026-11-28T10:00:00"}
    return KernelBench(environment, 1e12, (*times, slower), (peer,), ("A note.",), 100.0)


def test_goals_are_met_at_their_limits(bench: KernelBench) -> None:
    assert [goal.verdict for goal in bench.goals()] == ["met"] * 4


@pytest.mark.parametrize("number", range(4))
def test_goals_are_missed_just_beyond_their_limits(bench: KernelBench, number: int) -> None:
    if number == 2:
        peers = (replace(bench.peers[0], ratio=3.99),)
        bench = replace(bench, peers=peers)
    else:
        missed = {0: 0, 1: 1, 3: 2}[number]
        times = list(bench.times)
        late = replace(times[missed].time, median_s=times[missed].time.median_s * 1.01)
        times[missed] = replace(times[missed], time=late)
        bench = replace(bench, times=tuple(times))
    verdicts = [goal.verdict for goal in bench.goals()]
    assert verdicts == ["met" if i != number else "not met" for i in range(4)]


def test_a_goal_without_figures_is_not_measured(bench: KernelBench) -> None:
    bench = replace(bench, times=bench.times[3:4], peers=())
    assert [goal.verdict for goal in bench.goals()] == ["not measured"] * 4


def test_a_result_survives_json(bench: KernelBench) -> None:
    assert KernelBench.from_json(bench.to_json()) == bench
    assert json.loads(bench.to_json())["times"][0]["moved_bytes"] == 80_000_000


def test_the_page_has_every_figure(bench: KernelBench) -> None:
    page = bench.to_markdown()
    assert (
        "| 1024 | 16 | 0.75 | moves | 100 | 90.0 to 110 | 10.0 | 20.0 | 80.0 | 80% | 50% |" in page
    )
    assert "| eager torch chain | 1024 | 30 | 0.75 | blur | 4,000 | 3,000 to 5,000 | 4 |" in page
    assert "- device: NVIDIA H100 80GB HBM3" in page
    assert "copy moves 1,000 GB/s" in page
    assert "- A note." in page
    assert page.index("## cuda") < page.index("## triton")
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    assert sum("---" in line for line in tables) == 4


def test_the_terminal_shows_a_line_for_each_batch_and_compression(bench: KernelBench) -> None:
    lines = str(bench).splitlines()
    assert any(
        line.split() == ["1024", "30", "0.75", "100", "(60%)", "1,000", "(1%)"] for line in lines
    )
    assert any("eager torch chain" in line and "4 times as long" in line for line in lines)
    assert sum(": met." in line for line in lines) == 4


def test_pages_are_named_after_card_and_month(bench: KernelBench, tmp_path: Path) -> None:
    path = write_page(bench, ResultFiles(tmp_path / "results"))
    assert path == tmp_path / "results" / "kernel_h100_202611.md"
    assert path.read_text() == bench.to_markdown()
    assert KernelBench.from_json(path.with_suffix(".json").read_text()) == bench


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("cpu", "cpu"),
    ],
)
def test_cards_have_short_names(device: str, expected: str) -> None:
    assert card(device) == expected


def test_a_quick_run_on_a_cpu_measures_the_definition_and_the_other_ways() -> None:
    heard: list[str] = []
    bench = bench_kernel(CPU, crops=(2,), drops=(0.75,), quick=True, progress=heard.append)
    assert [time.kind for time in bench.times] == list(KINDS)
    assert {(t.implementation, t.crops, t.p, t.drop) for t in bench.times} == {
        ("torch", 2, 16, 0.75)
    }
    assert all(t.time.median_s > 0 and t.copy_s > 0 and t.gray_s is None for t in bench.times)
    moved = [t.moved_bytes for t in bench.times]
    kept = 56 * (16 * 16 * 3 + 768 * 2 + 8)  # bytes in, out and of the index, of 56 patches
    assert moved[0] == 2 * (kept + 9 * 4)
    assert moved[0] < moved[1] <= moved[2] <= 2 * (SIZE * SIZE * 3 + 56 * (768 * 2 + 8) + 9 * 4)
    assert {peer.peer for peer in bench.peers} >= {MASKED}
    for peer in bench.peers:
        ratio = peer.time.median_s / bench.times[2].time.median_s
        assert peer.kind == "blur"
        assert peer.ratio == pytest.approx(ratio)
    assert bench.goals() == []  # they are for GPUs
    assert KernelBench.from_json(bench.to_json()) == bench
    assert heard[0] == "copies"
    assert any("chain of masks" in line for line in str(bench).splitlines())
    assert "## torch" in bench.to_markdown()


def test_wrong_tokens_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = op.augment_patchify
    monkeypatch.setattr(measurement, "augment_patchify", lambda *args: right(*args) + 0.2)
    with pytest.raises(RuntimeError, match=r"torch, p = 16: .* not the definition's"):
        bench_kernel(CPU, crops=(1,), drops=(0.75,), quick=True)


def test_a_way_that_fails_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(StaticChain, "of", fails)
    bench = bench_kernel(CPU, crops=(1,), drops=(0.75,), quick=True)
    assert any(note == f"{MASKED} is left out, p16 d0.75: no room" for note in bench.notes)
    assert MASKED not in {peer.peer for peer in bench.peers}
    assert len(bench.times) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"crops": (0,)}, "batch of 0"),
        ({"sides_p": (17,)}, "17"),
        ({"drops": (1.0,)}, "1.0"),
        ({"drops": ()}, "drops"),
        ({"implementations": ("cuda",)}, "it needs a GPU"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        bench_kernel(CPU, quick=True, **options)


@pytest.mark.gpu
def test_captured_calls_take_the_time_of_the_device() -> None:
    device = torch.device("cuda")
    a, b = (torch.randn(4096, 4096, device=device) for _ in "ab")
    measured = timing.time_captured([lambda: a @ b, lambda: b @ a], device, 5)
    assert 1e-4 < measured.median_s < 0.1  # 0.14 TFLOP in float32


@pytest.mark.gpu
def test_a_run_on_a_gpu_has_every_figure() -> None:
    device = torch.device("cuda")
    bench = bench_kernel(device, crops=(64,), sides_p=(16, 30), drops=(0.5, 0.75), quick=True)
    cuda = [t for t in bench.times if t.implementation == "cuda"]
    assert len(cuda) == 2 * 2 * 3
    for t in cuda:
        assert t.gray_s is not None
        assert t.tokens_s is not None
        assert 0 < t.tokens_s < 1
        assert t.bytes_per_s < 20e12
    assert EAGER in {peer.peer for peer in bench.peers}
    assert not bench.notes
