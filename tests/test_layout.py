"""The checkout, the wheel's package list and the import layers agree."""

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUDIES = {"accelssl.benchmarks.studies"}
"""Scripts that are run from the checkout."""
CODE = ("shards", "pipeline", "model", "train", "benchmarks")
ROOT_MODULES = {"errors", "files", "folder_lock", "formats", "json_text", "switches", "text"}
ALLOWED = {
    "shards": ROOT_MODULES,
    "pipeline": {*ROOT_MODULES, "shards"},
    "model": ROOT_MODULES,
    "train": {*ROOT_MODULES, "option_names", "progress_lines", "shards", "pipeline", "model"},
    "benchmarks": {*ROOT_MODULES, "shards", "pipeline", "model", "train"},
}


def folders() -> set[str]:
    inits = (init for top in CODE for init in (ROOT / top).rglob("__init__.py"))
    return {"accelssl." + ".".join(i.parent.relative_to(ROOT).parts) for i in inits}


def test_every_folder_but_that_of_the_studies_is_packaged() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(config["packages"]) == (folders() - STUDIES) | {"accelssl", "accelssl.commands"}


@pytest.mark.parametrize("top", CODE)
def test_imports_point_one_way(top: str) -> None:
    allowed = ALLOWED[top] | {top}
    for path in (ROOT / top).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ImportFrom(module=str(module)):
                    names = [module]
                case ast.Import(names=aliases):
                    names = [alias.name for alias in aliases]
                case _:
                    continue
            for name in names:
                head, _, rest = name.partition(".")
                assert head not in CODE, f"{path}:{node.lineno} imports top-level {head!r}"
                if head == "accelssl":
                    assert rest.split(".")[0] in allowed, f"{path}:{node.lineno} imports {name}"


def test_nothing_is_imported_twice() -> None:
    assert not set(CODE) & set(sys.modules)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_begins_no_environment_anew_that_it_did_not_make(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    mine = tmp_path / ".venv" / "mine"
    mine.parent.mkdir()
    mine.touch()
    made = ["make", ".venv/.made-for-cu13"]
    ran = subprocess.run(made, cwd=tmp_path, text=True, capture_output=True)
    assert ran.returncode and "not from this Makefile" in ran.stderr and mine.exists()
