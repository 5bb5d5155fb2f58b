"""Runs with --schedule auto: what they decide, what that leaves alone, and how they go on."""

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.draws.order import Position
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.auto import BEFORE, UNSAID, Auto, AutoOptions
from accelssl.train.config.compression_options import refuse_another
from accelssl.train.config.config import DEFAULT_COMPRESSION, TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import constant, read_schedule
from accelssl.train.export import export_encoder
from accelssl.train.gradients import auto_schedule
from accelssl.train.gradients.analysis import WHOLE, AnalysisPlan, sums_of
from accelssl.train.gradients.command import AnalysisOptions, analyze_gradients
from accelssl.train.gradients.grid import analysis_units
from accelssl.train.gradients.record import CellRecord, StageRecord
from accelssl.train.gradients.sample_size import affordable
from accelssl.train.loop import train
from accelssl.train.report.cost_accounting import closing_lines
from accelssl.train.report.history import read_history
from accelssl.train.report.report import write_report
from accelssl.train.run import run_training
from accelssl.train.session import resume, start
from tests.train.any_run import CPU, config_on
from tests.train.checkpoints.stopping import stop_before_step, terminate
from tests.train.log.run_log import lines, losses

AT = (0.0, 0.4, 0.7)
TAKEN = {0.0: Compression(24, 0.0), 0.4: UNCOMPRESSED, 0.7: Compression(24, 0.0)}
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"budget": 70.0},
    "moco": {"budget": 55.0, "momentum": 0.9},
    "dino": {"budget": 100.0, "n_local": 1, "local_size": 32, "prototypes": 24, "drop_path": 0.3},
}
"""With crops that allow few compressions, and as few images as an estimate may have."""
SMALL: dict[str, Any] = {"size": 48, "batch": 4, "base_lr": 0.01, "schedule": BEFORE}


def auto_config(shard_dir: Path, algo: str, **options: Any) -> TrainConfig:
    return config_on(shard_dir, algo, **(SMALL | METHODS[algo] | {"auto": Auto(1.0, AT)} | options))


def taken(stage: StageRecord, current: Compression | None = None) -> CellRecord:
    """Instead of what figures say, that few images leave to chance."""
    return next(cell for cell in stage.cells if cell.cell == TAKEN[stage.share])


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decision changes the compression."""
    monkeypatch.setattr(auto_schedule, "chosen_now", taken)


@pytest.fixture(
    scope="module",
    params=["simclr", *(pytest.param(algo, marks=pytest.mark.slow) for algo in ("moco", "dino"))],
)
def whole(
    request: pytest.FixtureRequest, shard_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of each method in one go, by the command, in which each decision is a change."""
    run = tmp_path_factory.mktemp(request.param) / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_schedule, "chosen_now", taken)
        config = auto_config(shard_dir, request.param)
        run_training(config, run, CPU, resuming=False, baseline=False)
    return run


def same(one: Any, other: Any) -> bool:
    """To the bit, in nested dicts and lists."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_a_run_is_to_the_bit_the_one_that_is_given_what_it_has_decided(
    whole: Path, tmp_path: Path
) -> None:
    """Losses, weights, key, centre, moments and the next batch: estimates leave no trace."""
    schedule = read_schedule(whole / "schedule.json")
    assert [(s.until, s.compression) for s in schedule.stages] == [
        (0.4, TAKEN[0.0]),
        (0.7, TAKEN[0.4]),
        (1.0, TAKEN[0.7]),
    ]
    config, given = read_config(whole / "config.json"), tmp_path / "given"
    train(start(replace(config, auto=None, schedule=schedule), given, CPU), given)
    assert losses(given) == losses(whole) and len(losses(given)) > 30
    ones, others = checkpoint.load(whole), checkpoint.load(given)
    for name in ("objective", "optimizer", "position", "spent", "images", "step"):
        assert same(getattr(ones, name), getattr(others, name)), name
    compressions = [(line["p"], line["drop"]) for line in lines(whole, "step")]
    assert compressions == [(line["p"], line["drop"]) for line in lines(given, "step")]


@pytest.mark.usefixtures("changes")
@pytest.mark.parametrize(
    "at", ["between", pytest.param("before an estimate", marks=pytest.mark.slow)]
)
def test_a_run_that_was_stopped_between_two_estimates_goes_on_to_identical_losses(
    whole: Path, tmp_path: Path, at: str
) -> None:
    config, run = read_config(whole / "config.json"), tmp_path / "run"
    first = lines(whole, "estimate")[1]["step"]
    stop_at = first + 5 if at == "between" else first + 1
    session = start(config, run, CPU)
    stop_before_step(session, stop_at)
    train(session, run)
    stopped = checkpoint.load(run)
    assert (stopped.step, len(stopped.decisions)) == (
        (first + 4, 2) if at == "between" else (first, 1)
    )
    assert not lines(run, "estimate")[2:]
    train(resume(config, run, CPU), run)
    assert losses(run) == losses(whole)
    ones, others = checkpoint.load(run), checkpoint.load(whole)
    assert same(ones.objective, others.objective) and same(ones.optimizer, others.optimizer)
    for found, expected in zip(lines(run, "estimate"), lines(whole, "estimate"), strict=True):
        assert found | {"seconds": 0} == expected | {"seconds": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("changes")
def test_what_a_killed_run_decided_after_its_checkpoint_is_decided_anew(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the midst of its second estimate, then after it, before the next checkpoint."""
    config, run = read_config(whole / "config.json"), tmp_path / "run"
    original = auto_schedule._measured

    def die(*_: Any) -> None:
        raise MemoryError

    session = start(config, run, CPU)
    session.save(run)
    session.decide(auto_schedule.decide(session, 0.0))
    monkeypatch.setattr(auto_schedule, "_measured", die)
    with pytest.raises(MemoryError):
        train(session, run)
    monkeypatch.setattr(auto_schedule, "_measured", original)
    train(resume(config, run, CPU), run)
    assert losses(run) == losses(whole)
    decisions = read_history(run).decisions
    assert [decision.share for decision in decisions] == list(AT)


def test_a_run_that_is_killed_after_an_estimate_has_its_decision(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    session = start(auto_config(shard_dir, "simclr"), run, CPU)

    def die(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(session.loader, "next", die)
    with pytest.raises(MemoryError):
        train(session, run)
    assert [decision["share"] for decision in checkpoint.load(run).decisions] == [0.0]


@pytest.mark.usefixtures("changes")
def test_a_signal_ends_an_estimate_which_is_made_anew_when_the_run_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first gradient of the second estimate."""
    config, run = read_config(whole / "config.json"), tmp_path / "run"
    calls = 0

    def signalled(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            terminate()
        return sums_of(*arguments)

    monkeypatch.setattr(auto_schedule, "sums_of", signalled)
    assert train(start(config, run, CPU), run) == signal.SIGTERM
    step = lines(whole, "estimate")[1]["step"]
    assert lines(run, "end")[0]["step"] == checkpoint.load(run).step == step
    assert len(lines(run, "estimate")) == len(checkpoint.load(run).decisions) == 1
    assert train(resume(config, run, CPU), run) == 0
    assert losses(run) == losses(whole)
    assert len(lines(run, "estimate")) == len(AT)


def test_estimates_are_within_their_share_and_no_part_of_budget_and_training(whole: Path) -> None:
    config = read_config(whole / "config.json")
    size, found, steps = affordable(config), lines(whole, "estimate"), lines(whole, "step")
    assert [(line["share"], line["p"]) for line in found] == [(a, TAKEN[a].p) for a in AT]
    for line in found:
        assert line["units"] == pytest.approx(analysis_units(config, size.cells, size.samples))
        assert len(line["cells"]) == len(size.cells)
        assert all(low < value < high for value, low, high in (c["ca_mse"] for c in line["cells"]))
    assert 0 < sum(line["units"] for line in found) <= config.budget
    cost = sum(config.batch * line["sample_cost"] for line in steps)
    assert steps[-1]["spent"] == pytest.approx(cost) and cost < 1.1 * config.budget
    before = next(line for line in steps if line["progress"] >= 0.4)
    assert found[1]["step"] == before["step"] and found[1]["progress"] == before["progress"]
    # The first step after an estimate takes no longer than it does itself.
    at = found[1]["step"]
    passed_s = steps[at]["elapsed_s"] - steps[at - 1]["elapsed_s"]
    assert passed_s < found[1]["seconds"]
    state = checkpoint.load(whole)
    assert [d["units"] for d in state.decisions] == [line["units"] for line in found]
    assert all(d["seconds"] > 0 for d in state.decisions)


def test_log_report_and_last_words_tell_what_was_decided_and_what_that_cost(whole: Path) -> None:
    history = read_history(whole)
    total = sum(line["units"] for line in lines(whole, "estimate"))
    said = " ".join(closing_lines(history))
    share = f"({100 * total / read_config(whole / 'config.json').budget:.1f}% of the budget)"
    assert "choosing compressions, in addition: " in said and share in said
    page = write_report(whole).read_text()
    assert "How compressions were chosen" in page and "in place of p24 d0" in page
    assert share in page and "estimates, in addition" in page
    assert "What the network saw" in page
    content = json.loads((whole / "schedule.json").read_text())
    config = read_config(whole / "config.json")
    assert content["method"] == config.algo and content["analysis"]["model"] == config.model
    assert content["analysis"]["data_digest"] == checkpoint.load(whole).digest
    assert sum(content["steps"]) == lines(whole, "step")[-1]["step"]
    assert len(content["values"][0]["ca_mse"]) == len(lines(whole, "estimate")[0]["cells"])
    assert '"/' not in (whole / "schedule.json").read_text()


def test_the_report_of_a_run_that_was_given_its_schedule_says_nothing_of_choosing(
    shard_dir: Path, tmp_path: Path
) -> None:
    train(start(config_on(shard_dir, budget=5.0), tmp_path / "run", CPU), tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    assert "How compressions were chosen" not in page and "estimates, in addition" not in page


def test_other_commands_take_such_a_run(whole: Path, tmp_path: Path) -> None:
    export_encoder(whole, tmp_path / "vit.safetensors")
    quick = AnalysisOptions(checkpoints="1", sides="48", drops="0", samples=16, subbatch=4)
    assert analyze_gradients(whole, None, tmp_path / "camse.json", quick, "cpu")
    run_training(read_config(whole / "config.json"), whole, CPU, resuming=True, baseline=False)


def test_the_first_estimate_is_the_analysis_of_the_network_a_run_begins_with(
    whole: Path, tmp_path: Path
) -> None:
    """accelssl analyze-gradients, of the same images, from the configuration alone."""
    size, out = affordable(read_config(whole / "config.json")), tmp_path / "camse.json"
    asked = AnalysisOptions("0", "16,24", "0,.5,.75", samples=size.samples, subbatch=size.subbatch)
    analyze_gradients(whole, None, out, asked, "cpu")
    (stage,), first = json.loads(out.read_text())["stages"], lines(whole, "estimate")[0]
    assert stage["weights"] == first["weights"] and stage["norm2"] == first["norm2"]
    found = {(cell["p"], cell["drop"]): cell for cell in first["cells"]}
    assert len(stage["cells"]) == 6
    for cell in stage["cells"]:
        assert found[cell["p"], cell["drop"]] == cell


@pytest.mark.parametrize("algo", METHODS)
def test_an_estimate_touches_neither_network_nor_generators_nor_the_place_in_the_data(
    shard_dir: Path, tmp_path: Path, algo: str
) -> None:
    session = start(auto_config(shard_dir, algo), tmp_path / "run", CPU)
    objective = session.objective
    for parameter in objective.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    buffers = {name: buffer.clone() for name, buffer in objective.named_buffers()}
    parameters = {name: p.detach().clone() for name, p in objective.named_parameters()}
    modules, drawn = [type(module) for module in objective.modules()], torch.get_rng_state()
    auto_schedule.decide(session, 0.0)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert same(buffers, dict(objective.named_buffers()))
    assert same(parameters, {name: p.detach() for name, p in objective.named_parameters()})
    assert all((p.grad == 0.5).all() for p in objective.parameters() if p.grad is not None)
    assert [type(module) for module in objective.modules()] == modules
    assert session.loader.position == Position() and session.budget.spent == 0


def test_each_estimate_sees_images_or_crops_of_its_own(shard_dir: Path, tmp_path: Path) -> None:
    session = start(auto_config(shard_dir, "simclr"), tmp_path / "run", CPU)
    size = affordable(session.config)
    seen = set()
    for share in AT:
        loader = auto_schedule._loader(session, share, size, WHOLE, AnalysisPlan(size.subbatches))
        for _ in range(size.subbatches):
            batch = loader.next((UNCOMPRESSED, UNCOMPRESSED))
            seen |= {(batch.epoch, sample) for sample in batch.samples_N.tolist()}
        loader.close()
    assert len(seen) == len(AT) * size.samples


def test_a_step_that_passes_several_points_is_followed_by_one_estimate(
    shard_dir: Path, tmp_path: Path
) -> None:
    points = Auto(1.0, (0.0, 1e-4, 2e-4, 3e-4))
    run = tmp_path / "run"
    session = start(auto_config(shard_dir, "simclr", budget=91.0, auto=points), run, CPU)
    stop_before_step(session, 3)
    train(session, run)
    assert [line["share"] for line in lines(run, "estimate")] == [0.0, 3e-4]


def test_a_gradient_that_is_not_finite_stops_the_run_and_keeps_its_checkpoint(
    shard_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    session = start(auto_config(shard_dir, "simclr"), run, CPU)
    session.save(run)
    with torch.no_grad():
        next(p for p in session.objective.parameters() if p.requires_grad).fill_(math.nan)
    with pytest.raises(UserError, match="A gradient is not finite"):
        train(session, run)
    assert checkpoint.load(run).step == 0


def test_another_way_of_choosing_is_refused_by_name_when_a_run_goes_on(shard_dir: Path) -> None:
    auto = auto_config(shard_dir, "simclr")
    given = replace(auto, auto=None, schedule=constant(Compression(24, 0.0)))
    usual = DEFAULT_COMPRESSION
    for compression, options in (
        ((None, None, None), UNSAID),
        ((None, None, "auto"), UNSAID),
        ((None, None, "auto"), AutoOptions(1.0, "0,.4,.7")),
    ):
        refuse_another(auto, compression, options, usual)
    with pytest.raises(UserError, match=r"started with --auto-share 1\.0, not 0\.5"):
        refuse_another(auto, (None, None, "auto"), AutoOptions(0.5), usual)
    with pytest.raises(UserError, match=r"started with --auto-at 0,.*, not 0,0\.5\."):
        refuse_another(auto, (None, None, "auto"), AutoOptions(at="0,.5"), usual)
    with pytest.raises(UserError, match=r"started with --schedule auto, not p16 d0 until 1\."):
        refuse_another(auto, (16, 0.0, None), UNSAID, usual)
    with pytest.raises(UserError, match=r"started with p24 d0 until 1, not --schedule auto"):
        refuse_another(given, (None, None, "auto"), UNSAID, usual)
    refuse_another(given, (24, 0.0, None), UNSAID, usual)


def test_an_edited_share_is_refused_when_a_run_goes_on(whole: Path, tmp_path: Path) -> None:
    config = read_config(whole / "config.json")
    edited = replace(config, auto=Auto(0.99, AT))
    with pytest.raises(UserError, match=r"auto .*0\.99"):
        resume(edited, whole, CPU)
    assert config == resume(config, whole, CPU).config
