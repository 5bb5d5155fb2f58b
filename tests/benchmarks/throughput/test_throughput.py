"""bench-throughput from end to end, in small: every figure is there, and failures are notes."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from accelssl.benchmarks.throughput import sources, steps
from accelssl.benchmarks.throughput.page import terminal_table
from accelssl.benchmarks.throughput.plan import Plan, default_plan
from accelssl.benchmarks.throughput.result import ThroughputBench
from accelssl.benchmarks.throughput.row import COLD_LOADER, DECODER, LOADER
from accelssl.benchmarks.throughput.step_windows import Windows
from accelssl.benchmarks.throughput.steps import synthetic_batches
from accelssl.benchmarks.throughput.throughput import bench_throughput
from accelssl.cli import app
from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.loader import Batch, LoaderOptions
from accelssl.train.config import recipes
from accelssl.train.step import Step
from tests import small_vit

CPU = torch.device("cpu")
MODEL = small_vit.NAME
FEW, FEWEST = Compression(30, 0.75), Compression(48, 0.5)


def small_plan(**changes: object) -> Plan:
    plan = Plan((MODEL,), (FEW, FEWEST), 4, 1, Windows(2, 1, warm_up=1), has_peers=False)
    return replace(plan, **changes)  # type: ignore[arg-type]


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of the usual size would be most of what a small ViT computes."""
    monkeypatch.setattr(recipes, "simclr", partial(recipes.simclr, head_hidden=16, head_out=8))


def test_a_run_on_a_cpu_has_every_figure(shard_dir: Path, small_heads: None) -> None:
    heard: list[str] = []
    seen: list[ThroughputBench] = []
    bench = bench_throughput(
        CPU, small_plan(), shards=shard_dir, progress=heard.append, on_row=seen.append
    )
    assert [(row.p, row.drop, row.keep) for row in bench.rows] == [(30, 0.75, 16), (48, 0.5, 12)]
    for row in bench.rows:
        assert row.live is not None
        assert row.op is not None
        for timing in (row.synthetic, row.live, row.op):
            assert 0 < timing.low_s <= timing.median_s <= timing.high_s < 60
        assert row.launch_s is row.memory_bytes is None  # of a GPU
        assert bench.limit(row) in ("step", "op", "decoder")
    assert len(bench.source(DECODER)) == 1
    assert [(s.p, s.drop) for s in bench.source(LOADER)] == [(30, 0.75), (48, 0.5)]
    assert bench.peak is not None
    assert bench.pictures == f"40 images of {shard_dir}"
    # 40 images are 10 batches, no more than are on their way: there is nothing cold to time.
    assert [note for note in bench.notes if note.startswith("cold: not possible, 40 images")]
    assert [len(so_far.rows) for so_far in seen] == [0, 1, 2]
    assert any("live" in doing for doing in heard)
    assert ThroughputBench.from_json(bench.to_json()) == bench
    shown = terminal_table(bench)
    assert "tax: what data adds to a step." in " ".join(shown.split())
    for row in bench.rows:
        assert shown.count(f"\nlimit {bench.limit(row)}: ") == 1


@pytest.mark.parametrize("reason", [None, "the disk says no"])
def test_cold_files_are_timed_after_the_cache_is_emptied_or_not_at_all(
    reason: str | None, shard_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []

    def drop(files: tuple[str, ...]) -> str | None:
        dropped.extend(files)
        return reason

    monkeypatch.setattr(sources, "drop_from_cache", drop)
    bench = bench_throughput(CPU, small_plan(only="loader", batch=2), shards=shard_dir)
    assert dropped == [str(shard_dir / "train-000000.tar")]
    cold = bench.source(COLD_LOADER)
    assert [(s.p, s.drop) for s in cold] == ([] if reason else [(30, 0.75)])
    assert bench.notes == (("cold: not possible, the disk says no.",) if reason else ())


def test_a_row_that_fails_is_a_note_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, small_heads: None
) -> None:
    def without_room(compression: Compression, options: LoaderOptions) -> list[Batch]:
        if compression == FEW:
            raise torch.OutOfMemoryError("no room\nfor 7 GiB")
        return synthetic_batches(compression, options)

    monkeypatch.setattr(steps, "synthetic_batches", without_room)
    bench = bench_throughput(CPU, small_plan(only="step"))
    assert [row.p for row in bench.rows] == [48]
    assert bench.notes == (f"{MODEL} p30 d0.75 is left out: no room",)


def test_one_step_object_serves_all_compressions_of_a_model(
    monkeypatch: pytest.MonkeyPatch, small_heads: None
) -> None:
    made, stepped = [], []

    class Watched(Step):
        def __init__(self, *arguments: object, **options: object) -> None:
            made.append(self)
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

        def __call__(self, batch: Batch, rate: float, progress: float = 0.0) -> Tensor:
            stepped.append(batch.views[0].values_NLV.data_ptr())
            return super().__call__(batch, rate, progress)

    monkeypatch.setattr(steps, "Step", Watched)
    bench_throughput(CPU, small_plan(only="step"))
    assert len(made) == 1
    # First, warm-up, one that says how long a window is, two windows: three batches in turn.
    assert len(stepped) == 2 * 5
    assert len(set(stepped[:3])) == 3
    assert stepped[0] == stepped[3]


def test_synthetic_batches_are_as_the_loader_makes_them() -> None:
    options = LoaderOptions(5, 0, CPU, torch.bfloat16)
    batches = synthetic_batches(Compression(30, 0.5), options)
    assert len(batches) == 3
    for batch in batches:
        assert len(batch.views) == 2
        for view in batch.views:
            assert view.values_NLV.shape == (5, 32, 768)
            assert view.values_NLV.dtype == torch.bfloat16
            assert (view.p, view.grid) == (30, 8)
            kept = view.keep_idx_NL
            assert kept.shape == (5, 32)
            assert all(len(set(places)) == 32 for places in kept.tolist())
            assert 0 <= int(kept.min()) <= int(kept.max()) < 64
    first, second = (batch.views[0].keep_idx_NL for batch in batches[:2])
    assert not torch.equal(first, second)


def test_the_plan_of_a_cpu_is_small() -> None:
    plan = default_plan(CPU, quick=False)
    assert plan.compressions[0] == UNCOMPRESSED  # what speed-ups are against
    assert len(plan.models) * len(plan.compressions) == 2


@pytest.mark.parametrize("only", ["decoder", "loader"])
def test_the_command_measures_one_part_alone(only: str, shard_dir: Path, tmp_path: Path) -> None:
    options = ["--only", only, "--shards", str(shard_dir), "--batch", "4", "--threads", "1"]
    options += ["--quick", "--json", "--device", "cpu", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["bench-throughput", *options], catch_exceptions=False)
    assert done.exit_code == 0
    found, page = json.loads(done.stdout), done.stderr.splitlines()[-1]
    assert found["rows"] == []
    assert {source["source"] for source in found["sources"]} >= {only}
    assert Path(page).name.startswith(f"throughput_{only}_cpu_")
    assert json.loads(Path(page).with_suffix(".json").read_text()) == found


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--only", "kernel", "--models", "a"], "--models a does not go with --only kernel"),
        (["--only", "kernel", "--batch", "8"], "--batch 8 does not go"),
        (["--only", "step", "--shards", "set"], "--shards set does not go with --only step"),
        (["--only", "step", "--threads", "3"], "--threads 3 does not go"),
        (["--implementation", "cuda"], "--implementation cuda goes with --only kernel alone"),
        (["--only", "copy"], "--only copy"),
        (["--compressions", "31:0"], "31"),
    ],
)
def test_the_command_refuses_by_name(options: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        CliRunner().invoke(
            app, ["bench-throughput", "--device", "cpu", *options], catch_exceptions=False
        )


@pytest.mark.gpu
def test_a_run_on_a_gpu_has_every_figure(shard_dir: Path) -> None:
    device = torch.device("cuda")
    plan = small_plan(windows=Windows(2, 2), compressions=(UNCOMPRESSED, FEWEST), batch=8)
    plan = replace(plan, models=("vit_tiny_patch16_224",))
    bench = bench_throughput(device, plan, shards=shard_dir)
    assert len(bench.rows) == 2
    assert bench.copy_s is not None
    for row in bench.rows:
        assert row.launch_s is not None
        assert row.memory_bytes is not None
        assert 1e8 < row.memory_bytes < 80e9
        assert bench.of_peak(row) is not None
        assert bench.limit(row) is not None
    assert bench.realised(bench.rows[1]) is not None
    assert not [note for note in bench.notes if "left out" in note]
