"""bench-throughput --only step --explain from end to end, in small, and what it refuses."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from accelssl.benchmarks.step import explain
from accelssl.benchmarks.step.explain import explain_step
from accelssl.benchmarks.step.kernels import PARTS, TracedStep
from accelssl.benchmarks.step.page import page_name
from accelssl.benchmarks.step.result import StepBench
from accelssl.benchmarks.step.trace import Marks, trace
from accelssl.benchmarks.throughput.plan import Plan
from accelssl.benchmarks.throughput.step_windows import Windows
from accelssl.benchmarks.throughput.steps import synthetic_batches
from accelssl.cli import app
from accelssl.errors import UserError
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import LoaderOptions
from accelssl.train.config.config import TrainConfig
from accelssl.train.optim.adamw import adamw
from accelssl.train.step import Step

CPU = torch.device("cpu")
MODEL = "vit_tiny_patch16_224"
FEW, FEWEST = Compression(30, 0.75), Compression(48, 0.5)


def small_plan(*compressions: Compression) -> Plan:
    return Plan((MODEL,), compressions, 4, 1, Windows(2, 1, warm_up=1), only="step")


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of the usual size would be most of what a small ViT computes."""

    def config(plan: Plan, model: str, precision: str) -> TrainConfig:
        return replace(whole(plan, model, precision), head_hidden=16, head_out=8)

    whole = explain.config_of
    monkeypatch.setattr(explain, "config_of", config)


def small_objective() -> SimCLR:
    return SimCLR(MODEL, head_hidden=16, head_out=8)


def test_the_command_prints_every_part_and_writes_a_page(tmp_path: Path, small_heads: None) -> None:
    options = ["--only", "step", "--explain", "--quick", "--device", "cpu", "--batch", "2"]
    options += ["--compressions", "48:0.5", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench-throughput", *options], catch_exceptions=False)
    assert done.exit_code == 0
    bench = StepBench.from_json(next(tmp_path.glob("step_cpu_*.json")).read_text())
    (row,) = bench.rows
    assert (row.model, row.p, row.drop, row.tokens, row.pairs) == (MODEL, 48, 0.5, 13, 2)
    page = (tmp_path / page_name(bench)).read_text()
    assert str(tmp_path / page_name(bench)) in done.stdout.replace("\n", "")
    for part in row.parts:
        (line,) = re.findall(rf"^{part.part}  .*$", done.stdout, flags=re.MULTILINE)
        assert f"{part.seconds / row.profiled_s:.1%}" in line
        assert f"| {part.part} |" in page
    assert [part.part for part in row.parts] == list(PARTS)
    bounded = {part.part for part in row.parts if part.floor_s and part.seconds > 0}
    of_encoder = {"matrix products", "attention", "layer norm", "activation"}
    assert bounded == {*of_encoder, "heads and loss", "optimiser"}
    assert bench.environment["command"] in page


def traced(objective: SimCLR, compression: Compression) -> list[TracedStep]:
    marks = Marks(objective.encoder, CPU)
    step = Step(objective, adamw(objective, 0.1), "fp32")
    (batch, *_) = synthetic_batches(compression, LoaderOptions(2, 0, CPU, torch.float32))
    step(batch, 0.0)
    return trace(lambda: step(batch, 0.0), marks.mark, CPU, 2)


def test_operators_are_in_the_parts_where_the_model_has_them() -> None:
    """Twelve blocks: an attention, two norms and an activation each, and a norm at the end."""
    steps = traced(small_objective(), FEWEST)
    assert len(steps) == 2
    for step in steps:
        names = {part: [w.name for w in step.works if w.part == part] for part in PARTS}
        assert len(names["attention"]) == 2 * 12  # forward and backward
        assert len(names["layer norm"]) == 2 * 25
        assert len(names["activation"]) == 2 * 12
        # The projection; in a block qkv, output and two layers, and in the last q and kv apart.
        assert names["matrix products"].count("aten::linear") == 1 + 4 * 12 + 1
        assert names["heads and loss"].count("aten::linear") == 3
        assert names["heads and loss"].count("aten::batch_norm") == 3
        assert "aten::cross_entropy_loss" in names["heads and loss"]
        assert all("AdamW" in name for name in names["optimiser"])
        assert names["EMA"] == names["copies"] == []


def test_what_is_idle_and_what_is_busy_is_the_whole_step() -> None:
    for step in traced(small_objective(), FEWEST):
        assert 0 < step.busy_s < step.seconds
        assert all(work.own_s >= 0 for work in step.works)


def test_marks_change_neither_loss_nor_gradients() -> None:
    def trained_on(has_marks: bool) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        objective = small_objective()
        if has_marks:
            Marks(objective.encoder, CPU)
        (batch, *_) = synthetic_batches(FEWEST, LoaderOptions(2, 0, CPU, torch.float32))
        loss = objective(*batch.views)
        loss.backward()
        return loss, [p.grad for p in objective.parameters() if p.grad is not None]

    loss, gradients = trained_on(False)
    same_loss, same_gradients = trained_on(True)
    assert torch.equal(loss, same_loss)
    assert all(map(torch.equal, gradients, same_gradients))


@pytest.mark.slow
def test_a_row_that_fails_is_a_note_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, small_heads: None
) -> None:
    def without_room(compression: Compression, options: LoaderOptions) -> list[object]:
        if compression == FEW:
            raise torch.OutOfMemoryError("no room\nfor 7 GiB")
        return list(synthetic_batches(compression, options))

    monkeypatch.setattr(explain, "synthetic_batches", without_room)
    heard: list[str] = []
    seen: list[StepBench] = []
    bench = explain_step(CPU, small_plan(FEW, FEWEST), progress=heard.append, on_row=seen.append)
    assert [row.p for row in bench.rows] == [48]
    assert bench.notes == (f"{MODEL} p30 d0.75 is left out: no room",)
    assert [len(so_far.rows) for so_far in seen] == [0, 1]
    assert StepBench.from_json(bench.to_json()) == bench
    assert bench.notes[0] in str(bench) and bench.notes[0] in bench.to_markdown()


def test_an_unknown_model_is_refused_before_anything_is_measured() -> None:
    heard: list[str] = []
    plan = replace(small_plan(FEWEST), models=(MODEL, "vit_tinny"))
    with pytest.raises(UserError, match="vit_tinny"):
        explain_step(CPU, plan, progress=heard.append)
    assert heard == []


@pytest.mark.parametrize("only", [[], ["--only", "kernel"], ["--only", "live"]])
def test_explain_goes_with_the_step_alone(only: list[str]) -> None:
    with pytest.raises(UserError, match="--explain looks into the step alone"):
        CliRunner().invoke(app, ["bench-throughput", "--explain", *only], catch_exceptions=False)


@pytest.mark.gpu
def test_a_captured_step_has_every_part_that_simclr_has() -> None:
    plan = replace(small_plan(FEW, FEWEST), windows=Windows(2, 2), batch=64)
    bench = explain_step(torch.device("cuda"), plan)
    assert bench.notes == ()
    for row in bench.rows:
        launches = {part.part: part.launches for part in row.parts}
        without = {part for part, count in launches.items() if not count}
        assert without == {"EMA", "communication", "gaps"}
        assert launches["attention"] >= 2 * 12
