"""Record of the package versions and hardware of a run, for readers of its results."""

import os
import platform
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from accelssl.switches import given

_PACKAGES = (
    "accelssl",
    "torch",
    "timm",
    "numpy",
    "nvidia-dali-cuda130",
    "nvidia-dali-cuda120",
)


def environment(device: torch.device) -> dict[str, Any]:
    """Return package versions, processor, cores, device, command line and the switches set."""
    versions = {name: found for name in _PACKAGES if (found := _version(name))}
    on_gpu = device.type == "cuda"
    return {
        **versions,
        **given(),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "command": " ".join([_program(), *sys.argv[1:]]),
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def _program() -> str:
    """Return the name of the program; "accelssl" also for `python -m accelssl`."""
    called = Path(sys.argv[0])
    return called.parent.name if called.name == "__main__.py" else called.name


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
