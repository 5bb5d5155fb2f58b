"""The kernels compiled for GPUs that are not here: nothing is too large, nothing spills."""

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from accelssl.model.short_attention import MOST_TOKENS
from accelssl.model.short_attention_kernel import (
    FIRST,
    FROM_SHARED_MEMORY,
    MOST_OF_TWO,
    Launch,
    launches,
)

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""What a program can have, by compute capability (CUDA C++ programming guide)."""


def compiled(launch: Launch, capability: int) -> tuple[bytes, int]:
    """Its code and its bytes of shared memory, for 12 heads of width 64 in bf16."""
    told = {"HEADS": 12, "HEAD": 64, "PRECISION": "tf32", **launch.options}
    names = launch.kernel.arg_names
    constants = {name: value for name, value in told.items() if name in names}
    options = {name: value for name, value in told.items() if name not in names}
    types = {"tokens": "i32", "scale": "fp32"}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*bf16") for name in names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")
    }
    source = ASTSource(launch.kernel, signature, constexprs=constants, attrs=aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return kernel.asm["cubin"], kernel.metadata.shared


@pytest.mark.parametrize(
    ("capability", "tokens"), [(80, 57), (90, 57), (90, 65), (90, 96), (90, 128), (100, 65)]
)
def test_a_program_fits_its_multiprocessor_and_spills_nothing(
    capability: int, tokens: int, tmp_path: Path
) -> None:
    for launch in launches(tokens, 64, capability // 10):
        code, shared_bytes = compiled(launch, capability)
        assert 0 < shared_bytes <= SHARED_BYTES[capability]
        (tmp_path / "code").write_bytes(code)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", tmp_path / "code"]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert found is not None and int(found[2]) == 0, usage


@pytest.mark.parametrize("capability", [8, 9, 10, 12])
def test_tiles_hold_all_tokens_and_few_empty_rows(capability: int) -> None:
    for tokens in range(1, MOST_TOKENS + 1):
        for launch in launches(tokens, 64, capability):
            rest = launch.options.get("REST")
            rows = launch.options["ROWS"] if rest is None else FIRST + rest
            assert tokens <= rows < max(17, 2 * tokens)
            if FIRST < tokens <= MOST_OF_TWO and capability in FROM_SHARED_MEMORY:
                assert rows <= 4 / 3 * tokens
