"""Folders of the pipeline import only folders below them, also inside functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PIPELINE = Path(__file__).resolve().parents[2] / "pipeline"
PREFIX = "accelssl.pipeline."
# From the bottom to the top. Neighbours in one set import each other in neither direction.
LAYERS = (
    {"compression", "views"},
    {"draws"},
    {"cuda"},
    {"compress", "crop"},
    {"read"},
    {"decode"},
    {"loader"},
    {"evaluation"},
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
MODULES = sorted(PIPELINE.rglob("*.py"))


def part_of(module: Path) -> str:
    return module.relative_to(PIPELINE).parts[0].removesuffix(".py")


def imported_parts(module: Path) -> Iterator[str]:
    """Yield the folder, or module beside the folders, of each import of the pipeline."""
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (n.removeprefix(PREFIX).split(".")[0] for n in names if n.startswith(PREFIX))


def test_every_part_has_a_layer() -> None:
    assert {part_of(module) for module in MODULES} == {*HEIGHT, "__init__"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PIPELINE)))
def test_imports_point_down(module: Path) -> None:
    part = part_of(module)
    for imported in set(imported_parts(module)) - {part}:
        assert HEIGHT[imported] < HEIGHT[part], f"{module} imports {imported}"


def test_folders_are_small() -> None:
    for folder in {module.parent for module in MODULES}:
        assert len(list(folder.glob("*.py"))) <= 20


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PIPELINE)))
def test_functions_are_short(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, node.name
