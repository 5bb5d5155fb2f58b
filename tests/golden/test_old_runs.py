"""A run that was written before goes on, and is evaluated, reported and exported.

The committed runs were stopped after the sixth of ten steps.
"""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from tests.golden.entry import CHANGED, DATA, METHODS, accelssl, copy_run, read_history

PRECISION = 1e-5
READING = CHANGED.format("The reading of a run")


@pytest.fixture(params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run of a method, in a folder of its own, by its relative path."""
    monkeypatch.chdir(tmp_path)
    return copy_run(request.param, tmp_path).relative_to(tmp_path)


def method_of(run: Path) -> str:
    return str(json.loads((run / "config.json").read_text())["algo"])


def state_of(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run / "checkpoint.pt", weights_only=True)
    return state


def decoder_options(run: Path) -> list[str]:
    """Restart the epoch after another version of DALI. The sixth step ends an epoch, so the
    losses stay the same."""
    stored = state_of(run)["stream"]["DALI"]
    installed = {
        d.version
        for d in metadata.distributions()
        if (d.metadata["Name"] or "").startswith("nvidia-dali-")
    }
    return [] if installed == {stored} else ["--restart-epoch"]


def test_a_checkpoint_holds_plain_types(run: Path) -> None:
    """Load with weights_only, which refuses classes: no module's name is in the file."""
    state = state_of(run)
    assert (state["format"], state["step"], tuple(state["position"])) == (3, 6, (3, 0))


def test_a_run_goes_on_to_the_same_losses_and_is_then_finished(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvidia.dali")
    words = ["train", "--resume", "--out", run, "--threads", 1, "--device", "cpu", "--no-baseline"]
    assert accelssl(*words, *decoder_options(run)) == 0, READING
    pinned = json.loads((DATA / "run_losses.json").read_text())[method_of(run)]
    history = read_history(run)
    assert history.steps.loss.tolist() == pytest.approx(pinned, rel=PRECISION), CHANGED.format(
        "The losses after a resume"
    )
    capsys.readouterr()
    assert accelssl(*words) == 0
    assert "is finished" in " ".join(capsys.readouterr().err.split()), READING


def test_a_run_is_evaluated_reported_and_exported(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accelssl("report", run) == 0 and (run / "report.html").exists(), READING
    assert accelssl("export", run, "vit.safetensors") == 0, READING
    config, state = json.loads((run / "config.json").read_text()), state_of(run)["objective"]
    network = timm.create_model(config["model"], checkpoint_path="vit.safetensors", num_classes=0)
    prefix = {"simclr": "", "moco": "query.", "dino": "key.average."}[config["algo"]]
    for name, value in network.state_dict().items():
        stored = state[f"{prefix}encoder.vit.{name}"]
        if not name.startswith("patch_embed"):  # takes colours on another scale
            assert torch.equal(value, stored), CHANGED.format(f"The exported {name}")
    pytest.importorskip("nvidia.dali")
    capsys.readouterr()
    assert accelssl("evaluate", run, "--device", "cpu", "--json") == 0, READING
    found = json.loads(capsys.readouterr().out)
    assert {"nn1", "knn20"} <= found["trained"].keys(), READING


def test_the_log_of_a_finished_run_reads_as_history() -> None:
    folder = DATA / "finished"
    history = read_history(folder)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    for name in ("step", "spent", "loss", "p", "drop", "images", "elapsed_s"):
        found = getattr(history.steps, name).tolist()
        assert found == [line[name] for line in steps], CHANGED.format(f"The history's {name}")
    assert history.budget == json.loads((folder / "config.json").read_text())["budget"]


def test_a_finished_run_is_reported(tmp_path: Path) -> None:
    for file in (DATA / "finished").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert accelssl("report", tmp_path) == 0 and (tmp_path / "report.html").exists(), READING
