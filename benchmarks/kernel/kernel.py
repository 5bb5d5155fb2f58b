"""The fused op against the bandwidth of the device, and against other ways to the same tokens.

`accelssl bench-throughput --only kernel` calls bench_kernel and write_page. On a machine without a
GPU a small plan is measured with the definition, so that the command works everywhere.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from accelssl.benchmarks.kernel.measurement import Measurement
from accelssl.benchmarks.kernel.page import page_name
from accelssl.benchmarks.kernel.plan import check, default_plan
from accelssl.benchmarks.kernel.result import KernelBench
from accelssl.benchmarks.result_files import ResultFiles
from accelssl.errors import UserError
from accelssl.pipeline.compress.op import Implementation
from accelssl.train.log.environment import environment


def bench_kernel(
    device: torch.device,
    *,
    crops: Sequence[int] | None = None,
    sides_p: Sequence[int] | None = None,
    drops: Sequence[float] | None = None,
    implementations: Sequence[Implementation] | None = None,
    quick: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> KernelBench:
    """Measure the op; what is None is default_plan's. `progress` hears what is measured next.

    An implementation or another way that is not there is left out, with a note. Raises UserError
    for values that the op does not take, RuntimeError if tokens are not the definition's.
    """
    begin = time.perf_counter()
    given: dict[str, Any] = {
        "crops": crops,
        "sides_p": sides_p,
        "drops": drops,
        "implementations": implementations,
    }
    chosen: dict[str, Any] = {k: tuple(values) for k, values in given.items() if values is not None}
    plan = replace(default_plan(device, quick), **chosen)
    check(plan)
    found = Measurement(device, plan, progress)
    with torch.no_grad():
        found.measure()
    if not found.times:
        raise UserError(
            f"Nothing could be measured on {device}: {' '.join(found.notes)}",
            'Measure other implementations: "torch" runs everywhere.',
        )
    return KernelBench(
        _environment(device),
        found.copies.bytes_per_s,
        tuple(found.times),
        tuple(found.peers),
        tuple(found.notes),
        time.perf_counter() - begin,
    )


def write_page(bench: KernelBench, files: ResultFiles) -> Path:
    """Write kernel_<card>_<yyyymm>.md, and .json beside it; the path of the page."""
    path = files.page(page_name(bench))
    path.write_text(bench.to_markdown())
    path.with_suffix(".json").write_text(bench.to_json() + "\n")
    return path


def _environment(device: torch.device) -> dict[str, Any]:
    found = environment(device)
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {
            "multiprocessors": card.multi_processor_count,
            "L2 cache": f"{card.L2_cache_size / 2**20:.0f} MiB",
            "driver": _driver(),
            "CUDA": torch.version.cuda,
        }
    return found


def _driver() -> str:
    question = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.partition("\n")[0].strip()
