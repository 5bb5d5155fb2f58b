"""Files of results: in a folder that was tried first, and never in the place of earlier ones."""

from pathlib import Path

import pytest

from accelssl.benchmarks.result_files import ResultFiles, try_to
from accelssl.errors import UserError

NAME = "step_cpu_202611.md"


def test_a_free_name_is_taken_and_kept_for_all_files_of_a_result(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path / "made" / "here")
    page = files.page(NAME)
    assert page == tmp_path / "made" / "here" / NAME
    page.write_text("")
    assert files.page(NAME) == page


@pytest.mark.parametrize("suffix", [".md", ".json", ".png"])
def test_a_result_that_is_there_stays(tmp_path: Path, suffix: str) -> None:
    """Also one of which the page was never written."""
    (tmp_path / NAME).with_suffix(suffix).write_text("earlier")
    second = ResultFiles(tmp_path).page(NAME)
    assert second == tmp_path / "step_cpu_202611_2.md"
    second.write_text("")
    assert ResultFiles(tmp_path).page(NAME) == tmp_path / "step_cpu_202611_3.md"
    assert (tmp_path / NAME).with_suffix(suffix).read_text() == "earlier"


def test_another_month_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("")
    assert ResultFiles(tmp_path).page("step_cpu_202612.md").name == "step_cpu_202612.md"


@pytest.mark.parametrize("place", ["file", "file/out", "/proc"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"{place} cannot be written: "):
        ResultFiles(tmp_path / place)


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    ResultFiles(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_cannot_be_written_does_not_end_the_measurement(tmp_path: Path) -> None:
    assert try_to(lambda: (tmp_path / "row.json").write_text(""))
    assert not try_to(lambda: (tmp_path / "missing" / "row.json").write_text(""))
    with pytest.raises(ZeroDivisionError):
        try_to(lambda: 1 / 0)
