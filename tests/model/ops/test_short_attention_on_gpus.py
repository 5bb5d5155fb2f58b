"""The kernels compiled for GPUs that are not here: nothing is too large, spills or is forgotten."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
import triton

from accelssl.model.ops.short_attention import MOST_TOKENS
from accelssl.model.ops.short_attention_kernel import (
    FIRST,
    FROM_SHARED_MEMORY,
    MOST_OF_TWO,
    Launch,
    launches,
    translates_two_tiles,
)
from tests.machine_code import compiled, read, refuse_spills

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""What a program can have, by compute capability (CUDA C++ programming guide)."""


def of_launch(launch: Launch, capability: int) -> Any:
    """It compiled for 12 heads of width 64 in bf16."""
    told = {"HEADS": 12, "HEAD": 64, "PRECISION": "tf32", **launch.options}
    return compiled(launch.kernel, told, capability)


def read_before_written(code: str) -> list[str]:
    """The instructions of a disassembly that read uniform registers nothing above them fills."""
    written, found = {"URZ"}, []
    for instruction in re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@\S+ +)?(\S[^;]*);", code):
        operation, _, operands = instruction.partition(" ")
        # A result comes first, but for predicates, which are results too.
        result = re.match(r"\s*(?:U?P\w, )*UR(\d+)(?=,|\s)", operands)
        sources = operands[result.end() :] if result else operands
        if set(re.findall(r"UR[0-9]+", sources)) - written:
            found.append(instruction)
        if result:
            first, width = int(result[1]), 2 if ".64" in operation or ".WIDE" in operation else 1
            written |= {f"UR{i}" for i in range(first, first + width)}
    return found


@pytest.mark.parametrize(
    ("capability", "tokens"), [(80, 57), (90, 57), (90, 65), (90, 96), (90, 128), (100, 65)]
)
def test_a_program_fits_its_multiprocessor_and_spills_nothing(
    capability: int, tokens: int, tmp_path: Path
) -> None:
    for launch in launches(tokens, 64, capability // 10):
        kernel = of_launch(launch, capability)
        assert 0 < kernel.metadata.shared <= SHARED_BYTES[capability]
        refuse_spills(kernel.asm["cubin"], tmp_path)


@pytest.mark.parametrize("tokens", [57, 65, 81, 97])
def test_machine_code_reads_no_uniform_register_before_it_has_written_it(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold the addresses of the products. ptxas 12.8 leaves one out, at 65 to 96 tokens."""
    monkeypatch.setenv("TRITON_PTXAS_PATH", triton.knobs.nvidia.ptxas.path)  # none set from here on
    for launch in launches(tokens, 64, 9, in_two=translates_two_tiles.__wrapped__(9)):
        code = read(of_launch(launch, 90).asm["cubin"], "-sass", tmp_path)
        assert "HGMMA" in code
        assert not read_before_written(code)


def test_a_ptxas_that_translates_two_tiles_wrongly_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "as it is")
    is_right = translates_two_tiles.__wrapped__
    for version, right in (("12.8", False), ("12.9", True), ("13.0", True), ("12.10", True)):
        tool = SimpleNamespace(version=version)
        tools = SimpleNamespace(nvidia=SimpleNamespace(ptxas=tool, ptxas_blackwell=tool))
        monkeypatch.setattr(triton, "knobs", tools)
        assert [is_right(capability) for capability in (9, 10)] == [right, right]
    assert all("ROWS" in launch.options for launch in launches(65, 64, 9, in_two=False))
    assert all("REST" in launch.options for launch in launches(65, 64, 9))


@pytest.mark.parametrize("capability", [8, 9, 10, 12])
def test_tiles_hold_all_tokens_and_few_empty_rows(capability: int) -> None:
    for tokens in range(1, MOST_TOKENS + 1):
        for launch in launches(tokens, 64, capability):
            rest = launch.options.get("REST")
            rows = launch.options["ROWS"] if rest is None else FIRST + rest
            assert tokens <= rows < max(17, 2 * tokens)
            if FIRST < tokens <= MOST_OF_TWO and capability in FROM_SHARED_MEMORY:
                assert rows <= 4 / 3 * tokens
