"""Triton kernels of the package, compiled for GPUs that are not here."""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

USUAL_TYPES = {"tokens": "i32", "scale": "fp32"}


def compiled(
    function: Any,
    told: dict[str, Any],
    capability: int,
    types: dict[str, str] = USUAL_TYPES,
    sixteens: Collection[str] = ("width",),
) -> Any:
    """What triton.compile gives for arguments of these types, bf16 tensors where nothing is said,
    aligned to 16 bytes. told: its constants and how it runs. sixteens: numbers, if there, that are
    multiples of 16."""
    names = function.arg_names
    constants = {name: value for name, value in told.items() if name in names}
    options = {name: value for name, value in told.items() if name not in names}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*bf16") for name in names
    }
    is_aligned = [name.endswith("_ptr") or name in sixteens for name in names]
    aligned = {(i,): [["tt.divisibility", 16]] for i, each in enumerate(is_aligned) if each}
    source = ASTSource(function, signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def read(code: bytes, what: str, folder: Path) -> str:
    """What cuobjdump prints of machine code. what: one of its options."""
    (folder / "code").write_bytes(code)
    command = [triton.knobs.nvidia.cuobjdump.path, what, folder / "code"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def stack_bytes(code: bytes, folder: Path) -> int:
    """Where spilled registers go."""
    (stack,) = re.findall(r"STACK:(\d+)", read(code, "-res-usage", folder))
    return int(stack)


def refuse_spills(code: bytes, folder: Path) -> None:
    """AssertionError where registers do not suffice."""
    assert stack_bytes(code, folder) == 0
