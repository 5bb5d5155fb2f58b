"""The command `accelssl evaluate`: its protocols, what it keeps, and what it refuses."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from accelssl import cli
from accelssl.errors import UserError
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.train.checkpoints import checkpoint
from accelssl.train.evaluate.command import EvaluateOptions, evaluate_linear
from accelssl.train.evaluate.results import read_results
from accelssl.train.evaluate.subject import open_subject
from accelssl.train.evaluate.tables import score_table
from accelssl.train.objective import build
from accelssl.train.session import start
from tests.conftest import smooth_picture
from tests.train.any_run import CPU, config_on

QUICK = "--protocol linear --epochs 2 --batch 8"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 8 training and 4 validation pictures of two classes."""
    root, rng = tmp_path_factory.mktemp("few"), np.random.default_rng(1)
    for split, count in (("train", 4), ("val", 2)):
        for c in range(2):
            folder = root / "pictures" / split / f"class{c}"
            folder.mkdir(parents=True)
            for i in range(count):
                smooth_picture(rng, 100, 120 + i, c).save(folder / f"{i}.jpg")
    shard_images(root / "pictures", root / "shards")
    return root / "shards"


@pytest.fixture(scope="module")
def trained(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose network is not the one it began with."""
    run = tmp_path_factory.mktemp("trained") / "run"
    session, generator = start(config_on(few), run, CPU), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in session.objective.evaluated.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
    session.save(run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def accelssl(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `accelssl WORDS --device cpu`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["accelssl", *words.split(), "--device", "cpu"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    code, captured = stopped.value.code, capsys.readouterr()
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_linear_prints_a_line_of_json_and_keeps_it(
    capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    code, out, err = accelssl(capsys, f"evaluate {run} {QUICK} --lrs 0.1,1 --json")
    assert (code, err) == (0, "") and out.count("\n") == 1
    found = json.loads(out)
    assert read_results(run) == [found]
    assert (found["protocol"], found["preset"], found["crops"]) == ("linear", "moco", "central")
    assert (found["epochs"], found["batch"], found["own"], found["step"]) == (2, 8, True, 0)
    assert [each["rate"] for each in found["trained"]["rates"]] == [0.1, 1.0]
    assert {"trained", "untrained"} <= found.keys()
    title = "linear probe (moco, central crops, 2 epochs, rates 0.1, 1), top-1"
    assert title in (run / "report.html").read_text()


def test_linear_says_which_protocol_was_run_and_that_the_best_rate_is_optimistic(
    capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    code, out, _ = accelssl(capsys, f"evaluate {run} {QUICK} --lp-bn --crops 2 --no-untrained")
    assert code == 0 and "linear probe (mae) on 2 random crops of each picture: 2 epochs" in out
    assert "optimistic" in out and "default is 0.1" in out and "--crops fresh" in out
    assert "untrained" not in out and "right of 4" in out
    assert out.endswith(f"kept in {run / 'evaluation.json'}, shown in {run / 'report.html'}\n")
    code, out, _ = accelssl(capsys, f"evaluate {run} {QUICK} --crops fresh --lrs 3")
    assert code == 0 and "new random crops in every epoch" in out
    assert "optimistic" not in out and "--crops fresh" not in out
    assert [found["crops"] for found in read_results(run)] == ["2", "fresh"]


def test_a_set_of_one_class_is_refused(
    capsys: pytest.CaptureFixture[str], run: Path, few: Path, tmp_path: Path
) -> None:
    pictures, alone = few.parent / "pictures", tmp_path / "alone"
    for split in ("train", "val"):
        first = sorted((pictures / split).iterdir())[0]
        shutil.copytree(first, tmp_path / "one" / split / first.name)
    shard_images(tmp_path / "one", alone)
    for protocol in ("nn", "linear", "finetune"):
        words = f"evaluate {run} --data {alone} --protocol {protocol}"
        code, _, err = accelssl(capsys, words)
        assert code == 2 and f"{alone} has one class: every answer would be right" in err
    with pytest.raises(UserError, match="one class: --eval-every"):
        start(config_on(alone, eval_every=0.5, batch=2), tmp_path / "another", CPU)


@pytest.mark.parametrize(
    "other",
    [
        "--preset mae",
        "--crops 1",
        "--lrs 0.1,1",
        "--epochs 2",
        "--batch 4",
        "--reset-last-norm",
    ],
)
def test_a_linear_result_is_replaced_by_its_like_alone(
    capsys: pytest.CaptureFixture[str], run: Path, other: str
) -> None:
    """Options given twice count the last time."""
    one = f"evaluate {run} --protocol linear --epochs 1 --batch 8 --lrs 0.1 --no-untrained --json"
    kept = [json.loads(accelssl(capsys, words)[1]) for words in (one, f"{one} {other}")]
    assert read_results(run) == kept
    again = json.loads(accelssl(capsys, one)[1])
    assert read_results(run) == [kept[1], again]


def test_another_set_is_kept_beside_the_runs_own(
    capsys: pytest.CaptureFixture[str], run: Path, few: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shard_images(few.parent / "pictures", other, seed=1)
    first = accelssl(capsys, f"evaluate {run} --json --no-untrained")[1]
    second = accelssl(capsys, f"evaluate {run} --json --data {other}")[1]
    own, foreign = json.loads(first), json.loads(second)
    assert read_results(run) == [own, foreign]
    assert (own["own"], foreign["own"]) == (True, False) and own["digest"] != foreign["digest"]
    assert "untrained" not in own and "untrained" in foreign
    assert "untrained" not in score_table(own)


def test_weights_in_a_file_are_evaluated_without_a_run(
    capsys: pytest.CaptureFixture[str], few: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    weights = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    words = f"--checkpoint {tmp_path / 'w.safetensors'} --model vit_tiny_patch16_224"
    code, out, err = accelssl(capsys, f"evaluate {words} --data {few} {QUICK} --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["model"] == "vit_tiny_patch16_224" and "own" not in found
    assert {"trained", "untrained"} <= found.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


def test_trained_is_the_checkpoint_and_untrained_what_the_run_began_with(
    run: Path, few: Path
) -> None:
    subject = open_subject(run, None, None, None, CPU)
    assert subject.untrained is not None
    begun = build(config_on(few)).evaluated.vit.state_dict()
    untrained, trained = (n.model.state_dict() for n in (subject.untrained, subject.trained))
    assert all(torch.equal(untrained[name], value) for name, value in begun.items())
    left = checkpoint.load(run).objective
    assert all(torch.equal(left[f"encoder.vit.{name}"], value) for name, value in trained.items())
    assert not torch.equal(trained["norm.weight"], untrained["norm.weight"])


def test_a_reset_norm_leaves_the_untrained_network_and_the_checkpoint_as_they_are(
    run: Path,
) -> None:
    results: list[dict[str, Any]] = []
    for resets in (True, None):
        subject = open_subject(run, None, None, None, CPU)
        options = EvaluateOptions(epochs=1, batch=8, rates="1", resets_last_norm=resets)
        results.append(evaluate_linear(subject, options, show=False))
        norm: Any = subject.trained.model
        assert bool((norm.norm.weight == 1).all()) == bool(resets)
    assert results[0]["untrained"] == results[1]["untrained"]
    assert [found["resets_last_norm"] for found in read_results(run)] == [True, False]


def test_fine_tuning_gets_network_set_and_settings_and_what_it_finds_is_kept(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def finetune(vit: Any, shards: Any, settings: Any, *given: Any, **more: Any) -> dict[str, Any]:
        calls.append({"vit": vit, "shards": shards, "settings": settings, "out": given[1], **more})
        counts = {"right1": 3, "right5": 4, "images": 4, "classes": 6, "seconds": 1.0}
        return counts | {"preset": "mae", "epochs": 2, "batch": 8, "top1": 75.0, "top5": 100.0}

    monkeypatch.setattr("accelssl.train.evaluate.finetune.finetune", finetune)
    words = f"evaluate {run} --protocol finetune --preset mae --epochs 2 --batch 8 --lr 0.25"
    code, out, err = accelssl(capsys, words)
    assert code == 0 and "top-1 75.0%" in out and "3 and 4 of 4" in out, err
    (call,) = calls
    settings = call["settings"]
    assert (settings.preset, settings.epochs, settings.batch) == ("mae", 2, 8)
    assert settings.base_lr == 0.25 and call["pictures"].size == 224
    weights = open_subject(run, None, None, None, CPU).trained.model.state_dict()
    assert all(torch.equal(weights[k], value) for k, value in call["vit"].state_dict().items())
    digest = call["shards"].digest
    assert call["out"] == run / "finetune" / f"mae-{digest[:12]}"
    (kept,) = read_results(run)
    assert (kept["protocol"], kept["own"], kept["top1"]) == ("finetune", True, 75.0)
    assert "fine-tuned (mae, 2 epochs, batch 8), top-1" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("protocol", "other", "presets"),
    [("linear", "deit", "moco or dino or mae"), ("finetune", "moco", "deit or mae")],
)
def test_a_preset_of_another_protocol_is_answered_with_those_of_the_one_given(
    capsys: pytest.CaptureFixture[str], run: Path, protocol: str, other: str, presets: str
) -> None:
    code, _, err = accelssl(capsys, f"evaluate {run} --protocol {protocol} --preset {other}")
    assert code == 2 and f"The preset '{other}' of --protocol {protocol} is not known." in err
    assert f"Use --preset {presets}." in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("RUN --protocol logistic", "'logistic'"),
        ("RUN --lrs 3", "--lrs has no effect with --protocol nn"),
        ("RUN --protocol finetune --crops 3", "--crops has no effect"),
        ("RUN --protocol finetune --no-untrained", "--no-untrained has no effect"),
        ("RUN --protocol finetune --lrs 1,2", "one rate"),
        ("RUN --protocol linear --preset dino --lp-bn", "dino was given"),
        ("RUN --protocol linear --lrs 0", "rate of 0"),
        ("RUN --protocol linear --lrs a,b", "'a,b'"),
        ("RUN --protocol linear --crops some", "'some'"),
        ("RUN --protocol linear --epochs 0", "--epochs 0"),
        ("RUN --model vit_tiny_patch16_224", "--model"),
        ("RUN --checkpoint w.pt", "Both"),
        ("--checkpoint w.pt", "No shard set"),
        ("--checkpoint w.pt --data SHARDS", "w.pt"),
        ("", "Neither"),
    ],
)
def test_what_makes_no_sense_is_named(
    capsys: pytest.CaptureFixture[str], run: Path, few: Path, words: str, named: str
) -> None:
    places = {"RUN": str(run), "SHARDS": str(few)}
    given = " ".join(places.get(word, word) for word in words.split())
    code, _, err = accelssl(capsys, f"evaluate {given}")
    assert code == 2 and named in err, err
    assert read_results(run) == []


def test_torchrun_is_for_fine_tuning_alone(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    code, _, err = accelssl(capsys, f"evaluate {run} --protocol linear")
    assert code == 2 and "torchrun" in err
