"""Hardware work queues: is their number set, and what does it do on this GPU?"""

import json
import os
import subprocess
import sys

from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.pipeline.decode import hardware_queues
from accelssl.pipeline.decode.hardware_queues import QUEUES, VARIABLE

FEW = 8
"""Default number of queues in CUDA."""
_TIMEOUT_S = 60
_MOST_DELAY = 0.5


def check_queues(context: Context) -> Finding:
    """Check the number of hardware queues of this process."""
    problem = hardware_queues.problem()
    if problem is not None:
        return Finding("hardware queues", "slow", problem, hardware_queues.REMEDY)
    return Finding("hardware queues", "ok", f"{VARIABLE} is {os.environ.get(VARIABLE, 'unset')}")


def check_effect_of_queues(context: Context) -> Finding:
    """Two fresh processes, one with 8 queues and one with 32: do short kernels wait for others?"""
    name = "effect of queues"
    few, many = (measure(str(context.device), queues) for queues in (FEW, QUEUES))
    found = (
        f"short kernels beside streams that wait {many['wait_ms']:.1f} ms take "
        f"{few['beside_ms']:.2f} ms with {FEW} queues, {many['beside_ms']:.2f} with {QUEUES}, "
        f"{many['alone_ms']:.2f} alone"
    )
    # Of the time that the other streams wait, the part that the short kernels waited with them.
    delay = (many["beside_ms"] - many["alone_ms"]) / many["wait_ms"]
    if delay > _MOST_DELAY:
        remedy = f"{VARIABLE} has no effect: under MPS set it where the MPS daemon starts."
        return Finding(name, "slow", found, remedy)
    return Finding(name, "ok", found)


def measure(device: str, queues: int) -> dict[str, float]:
    """Return queue_trial.py's figures for this number of queues. Raise RuntimeError if it fails."""
    command = [sys.executable, "-m", "accelssl.benchmarks.doctor.queue_trial", device]
    environment = os.environ | {VARIABLE: str(queues)}
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise RuntimeError(f"the trial with {queues} queues failed: {lines[-1]}")
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures
