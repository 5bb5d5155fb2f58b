"""Arithmetic of the crop's positions, for thousands of random windows that crop_axes.cpp draws.

Rounding that puts an output's centre on the wrong side of a pixel makes a whole row wrong, and may
do so in one window of a thousand.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from accelssl.pipeline.crop import kernel_source
from tests.pipeline.crop.crop_on_cpu import HERE, write_sources


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_no_row_and_no_column_is_taken_for_another(tmp_path: Path) -> None:
    write_sources(tmp_path)
    command = ["g++", "-std=c++17", "-O2", "-w", "-pthread", *kernel_source.defines()]
    command += [f"-I{tmp_path}", f"-I{HERE.parent}", str(HERE / "crop_axes.cpp"), "-o", "axes"]
    subprocess.run(command, cwd=tmp_path, check=True)
    seed = int(torch.randint(2**31, ()))
    print(f"seed {seed}")
    ran = subprocess.run(
        ["./axes", str(seed), "1500"], cwd=tmp_path, text=True, capture_output=True
    )
    assert ran.returncode == 0, ran.stdout
