from functools import partial
from pathlib import Path

import pytest

from accelssl.errors import UserError
from accelssl.shards.write.demo_photographs import write_demo_pictures
from accelssl.train import demo

pytest.importorskip("skimage")
pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(write_demo_pictures, train_tiles=4, val_tiles=2)
    monkeypatch.setattr(demo, "write_demo_pictures", few)
    monkeypatch.setattr("accelssl.train.report.baseline.ENOUGH_S", 0.0)


@pytest.mark.slow
def test_the_demo_ends_with_scores_and_a_report_and_a_second_call_shows_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert demo.run_demo(out, "100", "cpu") == 0
    first = capsys.readouterr().out
    assert "trained" in first and "untrained" in first and "pixels" in first
    assert str(out / "run" / "report.html") in first
    log = (out / "run" / "log.jsonl").read_bytes()
    assert demo.run_demo(out, "100", "cpu") == 0
    assert capsys.readouterr().out == first
    assert (out / "run" / "log.jsonl").read_bytes() == log
    with pytest.raises(UserError, match="other settings"):
        demo.run_demo(out, "200", "cpu")


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="other files"):
        demo.run_demo(tmp_path, "100", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
