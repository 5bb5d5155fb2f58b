"""The cores of this machine, and how threads wait on them."""

import os
from collections.abc import Callable
from pathlib import Path

from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.shards.write.worker_pool import usable_cores

FEWEST_CORES = 4
"""Beside a GPU: below, the threads that read and decode cannot keep it busy."""
CGROUPS = Path("/sys/fs/cgroup")
_OF_PROCESS = Path("/proc/self/cgroup")


def check_cores(context: Context) -> Finding:
    """Check for enough cores, and for no quota below the number that programs see."""
    cores, quota = usable_cores(), core_quota()
    found = f"{cores} of {os.cpu_count()} may be used"
    if quota is not None:
        found += f", for {quota:g} cores' time (cgroup quota)"
    if quota is not None and quota < cores:
        threads = max(1, int(quota))
        remedy = f"Decode with --threads {threads}: more threads than that are stopped in turns."
        return Finding("CPU cores", "slow", found, remedy)
    if context.on_gpu and cores < FEWEST_CORES:
        remedy = f"Give the process {FEWEST_CORES} cores and more: they read and decode."
        return Finding("CPU cores", "slow", found, remedy)
    return Finding("CPU cores", "ok", found)


def check_waiting_threads(context: Context) -> Finding:
    """Check that waiting threads sleep."""
    policy = os.environ.get("OMP_WAIT_POLICY")
    if (policy or "").lower() == "passive":
        return Finding("waiting threads", "ok", "OMP_WAIT_POLICY is passive")
    found = "OMP_WAIT_POLICY is not set" if policy is None else f"OMP_WAIT_POLICY is {policy!r}"
    remedy = "Set OMP_WAIT_POLICY=passive: threads that spin take the cores from decoding."
    return Finding("waiting threads", "slow", found, remedy)


def core_quota() -> float | None:
    """Return the cores that this process's cgroups and their parents grant; None: no limit.

    Both versions of cgroups are looked at.
    """
    try:
        lines = _OF_PROCESS.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _quotas(CGROUPS, path, _quota_of_v2)
        elif "cpu" in controllers.split(","):
            for root in (CGROUPS / controllers, CGROUPS / "cpu"):
                found += _quotas(root, path, _quota_of_v1)
    return min(found, default=None)


def _quotas(root: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """Return the quotas at `path` below `root` and at every folder above `path`.

    In a container the path may be the host's, and only the root be there.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [root.joinpath(*parts[:n]) for n in range(len(parts) + 1)]
    quotas = []
    for folder in folders:
        try:
            quota = read(folder)
        except (OSError, ValueError):
            continue
        if quota is not None:
            quotas.append(quota)
    return quotas


def _quota_of_v2(folder: Path) -> float | None:
    quota, period = (folder / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_of_v1(folder: Path) -> float | None:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
