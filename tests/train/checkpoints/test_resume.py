"""Resuming: the next unseen images at any stop, or a refusal that names what is not as it was."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws import draw_version
from accelssl.pipeline.draws.order import Position
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.train import run as running
from accelssl.train.checkpoints import checkpoint, resuming
from accelssl.train.command import Machine, train_command
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import constant
from accelssl.train.loop import train
from accelssl.train.ranks.distributed import Ranks
from accelssl.train.report.history import NEEDED
from accelssl.train.run import is_started_anew, run_training
from accelssl.train.session import CONFIG, Session, resume, start
from tests import small_vit

CPU = torch.device("cpu")
BATCHES = 5  # in an epoch of 40 images
HALF = Compression(16, 0.5)
STEP_1 = dict.fromkeys(NEEDED, 1.0)


@pytest.fixture
def config(shard_dir: Path) -> TrainConfig:
    return config_on(shard_dir)


def config_on(shard_dir: Path) -> TrainConfig:
    return TrainConfig(
        algo="simclr",
        model=small_vit.NAME,
        data=str(shard_dir),
        budget=10.0,
        schedule=constant(HALF),
        size=48,
        batch=8,
        base_lr=0.01,
        head_hidden=16,
        head_out=8,
        seed=5,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def look_at(session: Session, count: int) -> list[tuple[int, list[int]]]:
    """The next batches as (epoch, samples): what a step takes in, without the step."""
    seen = []
    for _ in range(count):
        batch = session.loader.next((HALF, HALF))
        session.step += 1
        seen.append((batch.epoch, batch.samples_N.tolist()))
    return seen


def stopped_after(config: TrainConfig, run: Path, batches: int) -> list[tuple[int, list[int]]]:
    """Leaves a run that took in `batches` batches and wrote its checkpoint."""
    session = start(config, run, CPU)
    seen = look_at(session, batches)
    session.save(run)
    return seen


@pytest.fixture(scope="module")
def left_at(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs that took in so many batches; to be copied, not changed."""
    runs = {batches: tmp_path_factory.mktemp("left") / "run" for batches in (3, BATCHES)}
    for batches, run in runs.items():
        stopped_after(config_on(shard_dir), run, batches)
    return runs


def alter(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit what is in checkpoint.pt by hand."""
    path = run / checkpoint.NAME
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def edit_config(run: Path, **fields: Any) -> None:
    content = json.loads((run / CONFIG).read_text())
    assert fields.keys() <= content.keys()
    (run / CONFIG).write_text(json.dumps(content | fields))


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in written if line["kind"] == kind]


def accelssl(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and stderr of the command."""
    sys.argv = ["accelssl", *map(str, words)]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), capsys.readouterr().err


def test_stopped_after_every_batch_a_run_still_takes_in_every_image_once_an_epoch(
    config: TrainConfig, run: Path
) -> None:
    """Two epochs and a bit: stops before, at and after an epoch's end are among them."""
    session = start(config, run, CPU)
    seen = []
    for _ in range(2 * BATCHES + 1):
        seen += look_at(session, 1)
        session.save(run)
        look_at(session, 1)  # lost, as by a process that is killed
        session = resume(config, run, CPU)
    seen += look_at(session, 1)
    for epoch in (0, 1):
        visits = Counter(s for e, samples in seen if e == epoch for s in samples)
        assert visits == dict.fromkeys(range(40), 1)
    assert seen == look_at(start(config, run.with_name("whole"), CPU), 12)


@pytest.mark.parametrize(
    ("stored", "remedy"),
    [
        ({"world": 4}, "ranks 4"),
        ({"batch": 64}, "batch 64"),
        ({"draws": 0}, "version of the draws 0"),
        ({"DALI": "1.2.3"}, "DALI 1.2.3"),
        ({"nvImageCodec": "0.0.1"}, "nvImageCodec 0.0.1"),
        ({"batch": 64, "world": 4}, "batch 64 and ranks 4"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("batches", [3, BATCHES])
def test_a_run_on_other_data_is_refused_with_both_values_and_both_remedies(
    config: TrainConfig,
    left_at: dict[int, Path],
    run: Path,
    stored: dict[str, Any],
    remedy: str,
    batches: int,
) -> None:
    shutil.copytree(left_at[batches], run)
    found = checkpoint.load(run).stream
    alter(run, lambda state: state["stream"].update(stored))
    with pytest.raises(UserError) as refused:
        resume(config, run, CPU)
    for name, value in stored.items():
        assert f"{value}, now {found[name]}" in refused.value.what
    assert remedy in refused.value.remedy and "--restart-epoch" in refused.value.remedy
    assert resume(config, run, CPU, restart_epoch=True).restart is not None


def test_a_checkpoint_notes_all_that_a_run_depends_on(config: TrainConfig, run: Path) -> None:
    stopped_after(config, run, 1)
    state = checkpoint.load(run)
    told = config.to_json()
    assert state.fixed.items() >= {"seed": 5, "size": 48, "min_area": 0.08, "budget": 10}.items()
    assert set(told) - set(state.fixed) == {
        *("data", "batch", "precision", "eval_every", "keep_latest", "keep_at"),
        *("threads", "readers", "prefetch", "hw_load", "decoders", "preallocated_px"),
    }
    assert state.versions == {name: version(name) for name in ("accelssl", "torch", "timm")}
    assert state.stream == {
        "batch": 8,
        "world": 1,
        "draws": draw_version.DRAW_VERSION,
        **draw_version.decoder_versions(),
    }


def test_draws_of_a_later_version_are_refused(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(config, run, 3)
    now = draw_version.DRAW_VERSION
    monkeypatch.setattr(resuming, "DRAW_VERSION", now + 1)
    with pytest.raises(UserError, match=f"version of the draws {now}, now {now + 1}"):
        resume(config, run, CPU)


def another_set(shard_dir: Path, out: Path) -> str:
    """The same pictures in another order."""
    shard_images(shard_dir.parent / "pictures", out, seed=1, workers=1)
    return str(out)


def test_another_shard_set_is_refused_by_its_digest_or_begins_with_an_epoch(
    config: TrainConfig, run: Path, shard_dir: Path, tmp_path: Path
) -> None:
    stopped_after(config, run, 3)
    digest = checkpoint.load(run).digest
    elsewhere = replace(config, data=another_set(shard_dir, tmp_path / "other"))
    with pytest.raises(UserError, match=f"{elsewhere.data} is not the shard set.*{digest[:12]}"):
        resume(elsewhere, run, CPU)
    session = resume(elsewhere, run, CPU, restart_epoch=True)
    assert session.loader.position == Position(1, 0)


@pytest.mark.parametrize(
    ("batches", "begins"), [(1, 1), (4, 1), (BATCHES, 1), (BATCHES + 1, 2), (2 * BATCHES, 2)]
)
def test_a_restarted_epoch_is_the_next_whole_one_and_no_image_comes_too_often(
    config: TrainConfig, run: Path, batches: int, begins: int
) -> None:
    seen = stopped_after(config, run, batches)
    session = resume(config, run, CPU, restart_epoch=True)
    assert session.loader.position == Position(begins, 0)
    seen += look_at(session, BATCHES + 2)
    visits = Counter((epoch, s) for epoch, samples in seen for s in samples)
    assert set(visits.values()) == {1}
    whole = [s for epoch, samples in seen if epoch == begins for s in samples]
    assert sorted(whole) == list(range(40))


def test_restarting_is_said_in_the_log_and_on_the_terminal_and_then_kept(
    capsys: pytest.CaptureFixture[str], config: TrainConfig, run: Path
) -> None:
    stopped_after(config, run, 3)
    resuming_words = ["train", "--out", run, "--resume", "--device", "cpu", "--no-baseline"]
    code, err = accelssl(capsys, *resuming_words, "--batch", 4)
    assert code == 2 and "batch 8, not 4" in err and "--restart-epoch" in err
    code, err = accelssl(capsys, *resuming_words, "--batch", 4, "--restart-epoch")
    assert code == 0, err
    assert "epoch 1 from its start, epoch 0 was left at batch 3: batch 8, now 4" in " ".join(
        err.split()
    )
    (event,) = events(run, "restart_epoch")
    assert (event["epoch"], event["left_epoch"], event["left_batch"]) == (1, 0, 3)
    assert event["changes"] == {"batch": [8, 4]}
    first = events(run, "step")[0]
    assert (first["step"], first["epoch"], first["images"]) == (4, 1, 4)
    assert json.loads((run / CONFIG).read_text())["batch"] == 4
    assert checkpoint.load(run).stream["batch"] == 4


def test_a_restart_killed_before_its_first_step_is_an_ordinary_run(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(config, run, 3)

    def killed(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("accelssl.train.run._train", killed)
    smaller = replace(config, batch=4)
    with pytest.raises(KeyboardInterrupt):
        run_training(smaller, run, CPU, resuming=True, baseline=False, restart_epoch=True)
    session = resume(smaller, run, CPU)
    assert session.restart is None and session.loader.position == Position(1, 0)


def test_a_run_of_an_earlier_job_of_the_same_name_is_not_gone_on_with(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job is refused, and so it is when torchrun starts it once more."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job7")
    start(config, run, CPU)
    assert is_started_anew(Ranks(restarts=1), run)
    monkeypatch.setattr(running, "train", lambda *_: pytest.fail("goes on"))
    for restarts in (0, 1):
        with pytest.raises(UserError, match="already holds a run"):
            run_training(
                config,
                run,
                CPU,
                resuming=is_started_anew(Ranks(restarts=restarts), run),
                baseline=False,
                ranks=Ranks(restarts=restarts),
            )


def test_restarting_an_epoch_without_resuming_is_refused(
    capsys: pytest.CaptureFixture[str], run: Path, shard_dir: Path
) -> None:
    code, err = accelssl(
        capsys, "train", "--out", run, "--data", shard_dir, "--budget", "1k", "--restart-epoch"
    )
    assert code == 2 and "--restart-epoch" in err and "--resume" in err and not run.exists()


def as_format_1(state: dict[str, Any]) -> None:
    state["format"] = 1
    del state["fixed"], state["stream"], state["versions"]


def as_format_2(state: dict[str, Any]) -> None:
    state["format"] = 2
    moved = ("seed", "size", "min_area", "symmetric")
    state["stream"] |= {name: state["fixed"][name] for name in moved}
    kept = ("algo", "model", "head_hidden", "head_out", "weight_decay")
    state["fixed"] = {name: state["fixed"][name] for name in kept}
    del state["versions"]


def test_a_checkpoint_of_format_1_resumes_where_it_was_and_is_written_anew(
    config: TrainConfig, run: Path
) -> None:
    seen = stopped_after(config, run, 3)
    alter(run, as_format_1)
    session = resume(config, run, CPU)
    seen += look_at(session, BATCHES - 3)
    assert sorted(s for _, samples in seen for s in samples) == list(range(40))
    session.save(run)
    assert checkpoint.load(run).stream["world"] == 1
    assert checkpoint.load(run).fixed["model"] == small_vit.NAME


def test_a_checkpoint_of_format_2_resumes_and_knows_its_seed(
    config: TrainConfig, run: Path
) -> None:
    seen = stopped_after(config, run, 3)
    alter(run, as_format_2)
    with pytest.raises(UserError, match=r"config\.json is not that of .* seed 5, now 6"):
        resume(replace(config, seed=6), run, CPU)
    seen += look_at(resume(config, run, CPU), BATCHES - 3)
    assert sorted(s for _, samples in seen for s in samples) == list(range(40))


def test_a_run_that_goes_on_with_other_packages_says_so(
    capsys: pytest.CaptureFixture[str], config: TrainConfig, run: Path
) -> None:
    stopped_after(config, run, 1)
    alter(run, lambda state: state["versions"].update(torch="1.13.1"))
    words = ["train", "--out", run, "--resume", "--device", "cpu", "--no-baseline"]
    code, err = accelssl(capsys, *words)
    said = " ".join(err.split())
    assert code == 0 and f"torch 1.13.1, now {version('torch')}." in said, err
    (event,) = events(run, "resume")
    assert event["changed_versions"] == {"torch": ["1.13.1", version("torch")]}


def test_a_checkpoint_of_format_1_has_the_first_draws(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(config, run, 3)
    alter(run, as_format_1)
    monkeypatch.setattr(resuming, "DRAW_VERSION", 2)
    with pytest.raises(UserError, match="version of the draws 1, now 2"):
        resume(config, run, CPU)


def test_a_checkpoint_of_a_later_format_is_refused_by_its_number(
    config: TrainConfig, run: Path
) -> None:
    stopped_after(config, run, 1)
    alter(run, lambda state: state.update(format=99))
    with pytest.raises(UserError, match="format 99"):
        resume(config, run, CPU)


def test_a_checkpoint_that_is_gone_is_missed_and_not_begun_anew(
    config: TrainConfig, run: Path
) -> None:
    session = start(config, run, CPU)
    assert train(session, run) == 0
    (run / checkpoint.NAME).unlink()
    log = (run / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match=rf"up to {session.step}, but .*checkpoint.pt is missing"):
        resume(config, run, CPU)
    assert (run / "log.jsonl").read_bytes() == log
    (run / "log.jsonl").unlink()  # the remedy
    assert resume(config, run, CPU).step == 0


def test_a_run_killed_before_its_first_regular_checkpoint_begins_anew(
    config: TrainConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_in_step_2(session: Session, out: Path, *_: object) -> int:
        (out / "log.jsonl").write_text(json.dumps({"kind": "step"} | STEP_1) + "\n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("accelssl.train.run.train", killed_in_step_2)
        with pytest.raises(KeyboardInterrupt):
            run_training(config, run, CPU, resuming=False, baseline=False)
    session = resume(config, run, CPU)
    assert (session.step, session.budget.spent, session.loader.position) == (0, 0, Position())
    assert look_at(session, 1) == look_at(start(config, run.with_name("other"), CPU), 1)


def test_a_finished_run_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str], config: TrainConfig, run: Path
) -> None:
    assert train(start(config, run, CPU), run) == 0
    state, before = checkpoint.load(run), (run / checkpoint.NAME).read_bytes()
    edit_config(run, data=str(run / "gone"))  # a finished run needs no data
    code, err = accelssl(capsys, "train", "--out", run, "--resume", "--device", "cpu")
    assert code == 0 and (run / "report.html").exists()
    said = " ".join(err.split())
    assert f"{run} is finished" in said.replace("/ ", "/")
    assert f"of 10 units spent in {state.step} steps" in said
    assert (run / checkpoint.NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": "vit_small_patch16_224"}, "model accelssl_small_vit, now vit_small"),
        ({"head_hidden": 24}, "head_hidden 16, now 24"),
        ({"head_out": 4}, "head_out 8, now 4"),
        ({"weight_decay": 0.3}, "weight_decay 0.1, now 0.3"),
        ({"size": 64}, "size 48, now 64"),
        ({"seed": 7, "min_area": 0.5}, "min_area 0.08, now 0.5; seed 5, now 7"),
        ({"base_lr": 0.02}, "base_lr 0.01, now 0.02"),
        ({"budget": 20.0}, "budget 10.0, now 20.0"),
        ({"schedule": [{"until": 1.0, "p": 16, "drop": 0.0}]}, '"drop": 0.5}], now [{"until"'),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_an_edited_config_that_no_longer_fits_is_refused_with_both_values(
    config: TrainConfig, run: Path, fields: dict[str, Any], named: str
) -> None:
    stopped_after(config, run, 1)
    edit_config(run, **fields)
    with pytest.raises(UserError) as refused:
        train_command(
            out=run,
            data=None,
            algo="simclr",
            budget=None,
            compression=(None, None, None),
            small=False,
            options={},
            machine=Machine("cpu", threads=1),
            resume=True,
            baseline=False,
            restart_epoch=True,
        )
    assert named in refused.value.what and "config.json" in refused.value.what
    assert "Set it back" in refused.value.remedy


@pytest.mark.parametrize("fields", [{"model": "vit_small_patch16_224"}, {"head_hidden": 24}])
def test_weights_that_do_not_fit_name_a_tensor_where_the_model_was_not_noted(
    config: TrainConfig, run: Path, fields: dict[str, Any]
) -> None:
    stopped_after(config, run, 1)
    alter(run, as_format_1)
    with pytest.raises(
        UserError, match=r'does not fit the model.*(size mismatch for|Missing key.*) "?\w+\.'
    ) as refused:
        resume(replace(config, **fields), run, CPU)
    assert len(str(refused.value)) < 600
