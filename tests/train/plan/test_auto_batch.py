"""--batch auto: what a run is given by it, and where it is refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.formats import ABSENT
from accelssl.pipeline.compression import Compression
from accelssl.shards.shard_set import open_shards
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.plan import auto_batch, batch_trial, probe_speed
from accelssl.train.plan.auto_batch import batch_text, choose_batch
from accelssl.train.plan.batch_choice import Trial
from accelssl.train.plan.batch_trial import try_batch
from accelssl.train.ranks.distributed import ALONE, Ranks
from tests import small_vit
from tests.train.any_run import CPU, config_on
from tests.train.log.run_log import lines, losses

CUDA = torch.device("cuda")
CHEAP, DEAR = Compression(48, 0.5), Compression(16, 0.0)
STAGES = (Stage(0.3, CHEAP), Stage(0.6, DEAR), Stage(1.0, CHEAP))
Rates = dict[Compression, dict[int, float | None]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rates], None]:
    """Let trials give these units a second instead; a KeyError where others are made."""

    def give(rates: Rates) -> None:
        def instead(config: TrainConfig, stage: Stage, batch: int, device: torch.device) -> Trial:
            memory_bytes = None if device == CPU else batch << 30
            return Trial(batch, rates[stage.compression][batch], memory_bytes, 1.0)

        monkeypatch.setattr(auto_batch, "try_batch", instead)

    return give


def staged(shard_dir: Path, budget: float = 1e6) -> TrainConfig:
    return replace(config_on(shard_dir, budget=budget), schedule=Schedule(STAGES))


def train(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and standard error of `accelssl train`."""
    sys.argv = ["accelssl", "train", *(part for word in words for part in str(word).split())]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), capsys.readouterr().err


SMALL = f"--model {small_vit.NAME} --head-hidden 16 --threads 1 --device cpu --no-baseline"


def test_the_largest_proposal_is_taken_and_said_with_the_rate_that_follows(
    given: Callable[[Rates], None], shard_dir: Path
) -> None:
    given({CHEAP: {8: 10, 16: 20, 32: 40}, DEAR: {8: 10, 16: 10}})
    heard: list[str] = []
    choice = choose_batch(staged(shard_dir), CPU, ALONE, heard.append)
    assert choice.batch == 32 and len(heard) == 5
    said = batch_text(choice, replace(staged(shard_dir), batch=32, base_lr=2e-4)).splitlines()
    assert said[1].split() == ["1,", "3", "p48", "d0.5", "12", "32", "40", ABSENT, "images"]
    assert said[2].split() == ["2", "p16", "d0", "225", "8", "10", ABSENT, "speed"]
    assert "0.0002 x 32 / 256 = 2.5e-05" in said[-1]


@pytest.mark.parametrize(("at_32", "batch"), [(10.0, 32), (None, 8)])
def test_a_gpu_tries_the_larger_batch_in_the_stages_that_stopped_before_it(
    at_32: float | None, batch: int, given: Callable[[Rates], None], shard_dir: Path
) -> None:
    """Whose memory it may not fit; then the next smaller proposal is taken."""
    given({CHEAP: {8: 10, 16: 20, 32: 40}, DEAR: {8: 10, 16: 10, 32: at_32}})
    auto = choose_batch(staged(shard_dir), CPU, ALONE)
    assert auto.batch == 32  # nobody knows a CPU's memory
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(auto_batch.FIRST, "cuda", 8)
        choice = choose_batch(staged(shard_dir), CUDA, ALONE)
    assert choice.batch == batch
    said = batch_text(choice, staged(shard_dir))
    assert "32.0 GiB" in said and "fits the memory in all stages" in said


def test_the_budget_pays_for_a_step_of_what_is_chosen(
    given: Callable[[Rates], None], shard_dir: Path
) -> None:
    given({CHEAP: {8: 10, 16: 20, 32: 40}, DEAR: {8: 10, 16: 20, 32: 40}})
    dear = staged(shard_dir).sample_cost(STAGES[1])
    choice = choose_batch(staged(shard_dir, budget=31 * dear), CPU, ALONE)
    assert choice.batch == 16
    assert {each.proposal.limit for each in choice.measured} == {"budget"}


def test_a_first_batch_that_does_not_fit_is_refused_with_its_stage(
    given: Callable[[Rates], None], shard_dir: Path
) -> None:
    given({CHEAP: {32: 10}, DEAR: {32: None}})
    with pytest.raises(UserError, match=r"32 images at p16 d0 .* memory of cuda.*below 32"):
        choose_batch(staged(shard_dir), CUDA, ALONE)


@pytest.mark.parametrize(("algo", "views"), [("simclr", 2), ("moco", 2), ("dino", 4)])
def test_a_trial_is_a_step_of_the_method_with_that_many_images(
    algo: str, views: int, shard_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelssl.train.plan.probe_speed.ENOUGH_S", 0.0)
    seen: list[tuple[int, ...]] = []
    made = probe_speed.synthetic_batch

    def noted(*asked: Any) -> Any:
        batch = made(*asked)
        seen.extend(tuple(view.values_NLV.shape) for view in batch.views)
        return batch

    monkeypatch.setattr(batch_trial, "synthetic_batch", noted)
    options = {"n_local": 2, "local_size": 32, "prototypes": 16} if algo == "dino" else {}
    config = config_on(shard_dir, algo, **options)
    trial = try_batch(config, STAGES[0], 6, CPU)
    assert (trial.batch, trial.memory_bytes) == (6, None) and (trial.units_per_s or 0) > 0
    assert len(seen) == views and {shape[0] for shape in seen} == {6}
    assert seen[0] == (6, 12, 768)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_trial_that_runs_out_of_memory_is_one_that_does_not_fit(
    is_wrapped: bool, shard_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that led to another error; any other error stays one."""

    def fails(*_: Any) -> None:
        if not is_wrapped:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        try:
            raise torch.OutOfMemoryError("no block")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(batch_trial, "new_step", fails)
    trial = try_batch(config_on(shard_dir), STAGES[0], 8, CPU)
    assert (trial.batch, trial.units_per_s) == (8, None)

    def breaks(*_: Any) -> None:
        raise RuntimeError("mat1 and mat2 cannot be multiplied")

    monkeypatch.setattr(batch_trial, "new_step", breaks)
    with pytest.raises(RuntimeError, match="mat1"):
        try_batch(config_on(shard_dir), STAGES[0], 8, CPU)


def test_a_run_is_the_one_that_the_number_would_have_given(
    capsys: pytest.CaptureFixture[str],
    shard_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is measured before it leaves no trace in its losses, nor in its configuration."""
    monkeypatch.setattr("accelssl.train.plan.probe_speed.ENOUGH_S", 0.02)
    auto, number = tmp_path / "auto", tmp_path / "number"
    words = (SMALL, "--patch 48 --budget 30 --lr 0.01 --data", shard_dir, "--out")
    code, said = train(capsys, *words, auto, "--batch auto")
    assert code == 0, said
    found = json.loads((auto / "batch.json").read_text())
    batch = read_config(auto / "config.json").batch
    assert batch == found["batch"] == lines(auto, "batch")[0]["batch"]
    assert batch in (8, 16, 32) and f"--batch {batch}: the largest proposed." in said
    assert train(capsys, *words, number, "--batch", batch)[0] == 0
    assert losses(auto) == losses(number)
    assert lines(auto, "step")[0]["images"] == batch
    configs = [read_config(run / "config.json") for run in (auto, number)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("again", ["--resume", "--resume --restart-epoch"])
def test_a_run_that_goes_on_is_not_measured_again(
    again: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, said = train(capsys, "--device cpu --batch auto", again, "--out", tmp_path)
    assert code == 2 and "--batch auto was given with --resume" in said
    assert ("number of images" in said) == ("restart" in again)


def test_stages_that_the_run_itself_will_choose_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = "--device cpu --budget 1k --schedule auto --batch auto --data nowhere"
    code, said = train(capsys, words, "--out", tmp_path / "run")
    assert code == 2 and "--batch auto was given with --schedule auto" in said


def test_what_could_not_be_trained_is_refused_before_anything_is_measured(
    given: Callable[[Rates], None],
    capsys: pytest.CaptureFixture[str],
    shard_dir: Path,
    tmp_path: Path,
) -> None:
    given({})
    (tmp_path / "notes.txt").touch()
    words = (SMALL, "--batch auto --data", shard_dir, "--budget")
    code, said = train(capsys, *words, "1k --out", tmp_path)
    assert code == 2 and "already holds a run or other files" in said
    code, said = train(capsys, *words, "0.5 --out", tmp_path / "run")
    assert code == 2 and "does not pay for one step of 2 images" in said
    assert not (tmp_path / "run").exists()


def test_one_image_a_rank_is_refused_before_anything_is_measured(
    given: Callable[[Rates], None], shard_dir: Path
) -> None:
    """A batch norm over all ranks takes it, but a trial is a rank by itself."""
    given({})
    images = len(open_shards(shard_dir).split("train"))
    cases = [(8, 80.0, "--budget 80 pays for fewer"), (images - 1, 1e6, f"there are {images}")]
    for ranks, budget, said in cases:
        with pytest.raises(UserError, match=f"on each of {ranks} ranks, and {said}"):
            choose_batch(staged(shard_dir, budget), CPU, Ranks(world=ranks))


@pytest.mark.parametrize(("batch", "named"), [("abc", "'abc'"), ("0", "0"), ("-1", "-1")])
def test_a_batch_that_is_none_is_refused_by_its_value(
    batch: str, named: str, capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    words = (SMALL, "--budget 1k --data", shard_dir, "--out", tmp_path / "run")
    code, said = train(capsys, *words, "--batch", batch)
    assert code == 2 and f"--batch {named} " in said


@pytest.mark.gpu
def test_a_trial_on_a_gpu_gives_its_memory_back_also_when_it_was_too_much(
    shard_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelssl.train.plan.probe_speed.ENOUGH_S", 0.1)
    device = torch.device("cuda")
    config = config_on(shard_dir, "moco", precision="bf16")
    before = reserved_bytes()
    fits = try_batch(config, STAGES[0], 64, device)
    assert (fits.units_per_s or 0) > 0 and (fits.memory_bytes or 0) > 0
    assert reserved_bytes() - before < 2**26
    too_much = try_batch(config, STAGES[1], 2**20, device)
    assert too_much.units_per_s is None
    assert reserved_bytes() - before < 2**26
    again = try_batch(config, STAGES[0], 64, device)
    assert (again.units_per_s or 0) > 0


def reserved_bytes() -> int:
    """Without what cuBLAS keeps, 32 MiB for each stream that it has worked on."""
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return reserved - (allocated - torch.cuda.memory_allocated())
