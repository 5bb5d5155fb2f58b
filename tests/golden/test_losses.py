"""Ten losses of each method on the CPU, from files through the loader, over a change of stage."""

import json
from pathlib import Path

import pytest

from tests.golden.entry import CHANGED, DATA, METHODS, SHARDS, accelssl

pytest.importorskip("nvidia.dali")


@pytest.mark.parametrize("method", METHODS)
def test_ten_losses_are_unchanged(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors differ in the last digits: 1e-5 of a loss is allowed."""
    pinned = json.loads((DATA / "losses.json").read_text())[method]
    monkeypatch.chdir(tmp_path)
    Path("stages.json").write_text(json.dumps(pinned["schedule"]))
    words = ["--algo", method, "--data", SHARDS, "--out", "run", "--schedule", "stages.json"]
    assert accelssl("train", *words, *pinned["options"], "--no-baseline") == 0
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["p"] for line in steps] == [48] * 5 + [16] * 5, CHANGED.format("The schedule")
    found = [line["loss"] for line in steps]
    assert found == pytest.approx(pinned["losses"], rel=1e-5), CHANGED.format("The losses")
