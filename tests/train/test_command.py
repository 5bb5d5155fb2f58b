"""The train command's manners: what it says at the start and the end, and where it is refused."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelssl import cli
from accelssl.pipeline.compression import Compression
from accelssl.shards.shard_set import ShardSet
from accelssl.train.checkpoints.lock import exclusive
from accelssl.train.config.budget import Budget, format_units, parse_units, steps_bought
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Schedule, Stage, constant
from accelssl.train.log.run_text import outline
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.log.run_log import lines

TINY = "--model vit_tiny_patch16_224 --batch 8 --head-hidden 16 --threads 1 --device cpu"


def accelssl(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and stderr of the command, its lines joined."""
    sys.argv = ["accelssl", *(part for word in words for part in str(word).split())]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("budget", "ends"),
    [(1000.0, (0.3, 0.75, 1.0)), (40.0, (0.5, 1.0)), (12345.6, (1.0,)), (31.0, (0.1, 1.0))],
)
def test_the_steps_of_a_budget_are_those_a_run_makes(
    budget: float, ends: tuple[float, ...]
) -> None:
    patches = (48, 30, 16)[-len(ends) :]
    schedule = Schedule(
        tuple(Stage(end, Compression(p, 0.5)) for end, p in zip(ends, patches, strict=True))
    )
    run = TrainConfig("simclr", "vit_tiny_patch16_224", "shards", budget, schedule, batch=8)
    clock, made = Budget(run.budget), dict.fromkeys(schedule.stages, 0)
    while not clock.is_spent:
        stage = schedule.at(clock.progress)
        clock.charge(run.batch, run.sample_cost(stage))
        made[stage] += 1
    costs = [(stage.until, run.batch * run.sample_cost(stage)) for stage in schedule.stages]
    assert steps_bought(run.budget, costs) == list(made.values())


def test_the_steps_of_a_huge_budget_are_not_counted_singly() -> None:
    first, second = steps_bought(1e15, [(0.25, 2.0), (1.0, 4.0)])
    assert (first, second) == (125_000_000_000_000, 187_500_000_000_000)


def test_a_run_says_what_it_will_do_and_what_has_come_of_it(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    run, schedule = tmp_path / "run", tmp_path / "schedule.json"
    schedule.write_text(
        '[{"until": 0.5, "p": 48, "drop": 0.5}, {"until": 1.0, "p": 40, "drop": 0.5}]'
    )
    words = ("train", TINY, "--data", shard_dir, "--out", run, "--schedule", schedule)
    code, said = accelssl(capsys, *words, "--budget 30 --no-baseline")
    assert code == 0, said
    steps = lines(run, "step")
    first, second = (sum(line["p"] == p for line in steps) for p in (48, 40))
    images = 8 * len(steps)
    bought = f"30 units buy {first} steps of p48 d0.5, then {second} steps of p40 d0.5"
    assert f"{bought}: {images} images, {images / 40:.1f} epochs" in said
    came = rf"step {len(steps)}, loss {steps[-1]['loss']:.3f}: {images} images in [\d.]+ s, "
    assert re.search(came + r"[\d,]+ images/s", said), said
    assert "report: " in said and said.endswith(f"next: accelssl evaluate {run}")


def test_a_budget_that_the_last_step_goes_far_beyond_is_said(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    words = ("train", TINY, "--data", shard_dir, "--out", tmp_path / "run", "--patch 48 --drop .5")
    cost = 8 * TrainConfig(
        "simclr", "", "", 1e6, constant(Compression(48, 0.5)), batch=8
    ).sample_cost(Stage(1.0, Compression(48, 0.5)))
    code, said = accelssl(capsys, *words, f"--budget {1.4 * cost} --no-baseline")
    assert code == 0, said
    assert f"for {format_units(2 * cost)} units, the last step being a whole one" in said


@pytest.mark.parametrize(
    ("options", "is_timed"),
    [("", True), ("--no-baseline", False), ("--size 120 --patch 40", False)],
)
def test_before_uncompressed_steps_are_timed_it_is_said_and_else_it_is_not(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shard_dir: Path,
    tmp_path: Path,
    options: str,
    is_timed: bool,
) -> None:
    said_before: list[str] = []
    monkeypatch.setattr(
        "accelssl.train.run.measure_baseline",
        lambda *_: said_before.append(" ".join(capsys.readouterr().err.split())),
    )
    words = ("train", TINY, "--data", shard_dir, "--out", tmp_path / "run", "--budget 5 --patch 48")
    code, said = accelssl(capsys, *words, options)
    announced = "Timing uncompressed steps (p16 d0) of 8 images, for the speed-up in the report"
    assert code == 0 and announced not in said
    assert len(said_before) == is_timed
    assert all(f"{announced}; accelssl train --no-baseline" in each for each in said_before)


@pytest.mark.parametrize("what", ["run.write_report", "report.baseline._rate"])
def test_interrupted_once_it_is_over_a_run_is_complete_and_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shard_dir: Path,
    tmp_path: Path,
    what: str,
) -> None:
    """In its report, which a command writes later, or in the uncompressed steps for it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"accelssl.train.{what}", interrupted)
    run, has_report = tmp_path / "run", what == "report.baseline._rate"
    baseline = "" if has_report else "--no-baseline"
    words = ("train", TINY, "--data", shard_dir, "--out", run, "--budget 5 --patch 48", baseline)
    code, said = accelssl(capsys, *words)
    assert lines(run, "end") and (run / "report.html").exists() == has_report
    if has_report:
        assert code == 0 and "Interrupted: the report is without that speed-up" in said
        assert said.endswith(f"next: accelssl evaluate {run}")
    else:
        assert code == 130 and said.endswith(f"accelssl report {run} writes its report.")


def test_a_budget_of_absurdly_many_epochs_is_told_of_with_one_that_is_not(
    shard_set: ShardSet,
) -> None:
    run = TrainConfig(
        "simclr", "vit_tiny_patch16_224", "shards", 1e6, constant(Compression(48, 0.5)), batch=8
    )
    session: Any = SimpleNamespace(config=run, shards=shard_set, step=0)
    assert "epochs. Published runs have 1,000 at most: --budget " in outline(session)
    budget = parse_units(outline(session).rpartition(" ")[2])
    session.config = replace(run, budget=budget)
    said = outline(session)
    assert "Published" not in said
    epochs = float(said.replace(",", "").split()[-2])
    assert epochs == pytest.approx(1000, rel=0.02)


def test_a_budget_of_few_steps_is_told_of(shard_set: ShardSet) -> None:
    run = TrainConfig(
        "simclr", "vit_tiny_patch16_224", "shards", 1.0, constant(Compression(48, 0.5)), batch=2
    )
    cost = run.batch * run.sample_cost(run.schedule.stages[0])
    said = {}
    for steps in (99, 100):
        config = replace(run, budget=(steps - 0.5) * cost)
        session: Any = SimpleNamespace(config=config, shards=shard_set, step=0)
        said[steps] = outline(session)
        assert f"buy {steps} steps" in said[steps]
    assert said[99].endswith("So few steps teach little: a smaller --batch makes more of them")
    assert "So few" not in said[100]


@pytest.mark.parametrize(
    ("content", "is_noted"),
    [
        ('{"method": "moco", "stages": STAGES}', True),
        ('{"method": "simclr", "stages": STAGES}', False),
        ("STAGES", False),
        pytest.param('{"method": 3, "stages": STAGES}', False, marks=pytest.mark.slow),
        pytest.param('{"stages": STAGES}', False, marks=pytest.mark.slow),
    ],
)
def test_a_schedule_made_for_another_method_is_taken_with_a_note(
    capsys: pytest.CaptureFixture[str],
    shard_dir: Path,
    tmp_path: Path,
    content: str,
    is_noted: bool,
) -> None:
    schedule = tmp_path / "schedule.json"
    schedule.write_text(content.replace("STAGES", '[{"until": 1.0, "p": 48, "drop": 0.5}]'))
    words = ("train", TINY, "--data", shard_dir, "--out", tmp_path / "run", "--schedule", schedule)
    code, said = accelssl(capsys, *words, "--algo simclr --budget 5 --no-baseline")
    note = f"Note: the schedule {schedule} was made for moco, and this run is simclr:"
    assert code == 0 and (note in said) == is_noted and ("Note:" in said) == is_noted, said


def test_a_start_that_is_refused_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "first"
    words = ("train", TINY, "--data", tmp_path / "none", "--out", run, "--budget 1k")
    code, said = accelssl(capsys, *words)
    assert code == 2 and not (tmp_path / "runs").exists(), said
    run.mkdir(parents=True)
    assert accelssl(capsys, *words)[0] == 2
    assert run.is_dir() and list(run.iterdir()) == []


def test_a_folder_in_which_something_was_written_stays(tmp_path: Path) -> None:
    with exclusive(tmp_path / "run"):
        (tmp_path / "run" / "config.json").touch()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json", "lock"]


@pytest.mark.parametrize("command", ["train --resume --device cpu --out", "evaluate", "report"])
def test_a_run_that_is_not_there_is_missed_in_plain_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    code, said = accelssl(capsys, command, tmp_path / "gone")
    assert code == 2 and f"{tmp_path / 'gone'}" in said and "Errno" not in said
    assert re.search("There is no folder|is not a folder", said)
    assert ("leave --resume out" in said) == ("--resume" in command)
    code, said = accelssl(capsys, command, tmp_path)
    assert code == 2 and "config.json" in said and "Errno" not in said
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("there", "remedy"),
    [
        ("config.json", "Continue it with --resume, or name another folder with --out."),
        ("checkpoint.pt", "Put its config.json back and continue it with --resume, or name"),
        ("thesis.tex", "Name another folder with --out."),
    ],
)
def test_remedies_for_a_folder_in_use_lead_in_no_circle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str, remedy: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / there).write_text("{}")
    code, said = accelssl(capsys, f"train --out {run} --device cpu")
    assert code == 2 and f"already holds a run or other files. {remedy}" in said
    if there != "config.json":
        code, said = accelssl(capsys, f"train --out {run} --device cpu --resume")
        assert code == 2 and said.endswith("accelssl train wrote with --out.")
    code, said = accelssl(capsys, f"train --out {run / there} --device cpu")
    assert code == 2 and f"{there} is a file. Name a folder with --out." in said


def test_what_may_change_at_a_resume_is_kept_for_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shard_dir: Path
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    session = start(config_on(shard_dir, eval_every=0.5), run, CPU)
    session.save(run)
    session.loader.close()
    moved.symlink_to(shard_dir)
    words = f"train --out {run} --resume --device cpu --no-baseline --data {moved}"
    code, said = accelssl(capsys, words, "--eval-every 0 --keep 1")
    assert code == 0, said
    config = json.loads((run / "config.json").read_text())
    assert (config["data"], config["eval_every"], config["keep_latest"]) == (str(moved), 0.0, 1)
    assert not lines(run, "eval")


def test_who_forgot_to_say_resume_is_told_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    code, said = accelssl(capsys, f"train --out {run} --device cpu")
    assert code == 2 and "already holds a run" in said and "Continue it with --resume" in said
