"""Input and result of a check."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from accelssl.errors import UserError
from accelssl.pipeline.compress.op import Implementation

Verdict = Literal["ok", "slow", "broken", "absent"]
"""absent is no fault: something optional, or something that this machine has not got."""


@dataclass(frozen=True)
class Finding:
    """One line: `found` has the figures; `remedy` says what to do where it is not ok."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Context:
    """Input of the checks.

    `asked`: the device as the user named it. `data`: a shard set, or None. `scratch`: an empty
    folder, on the disk to measure where there is no `data`. `implementation`: of the op, to compare
    with the definition; auto: all that run here.
    """

    device: torch.device
    scratch: Path
    data: str | None = None
    implementation: Implementation = "auto"
    asked: str = "auto"

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def mega(rate: float) -> str:
    """Format a rate or size in bytes: 512 MB, 3.1 GB."""
    return f"{rate / 1e9:.1f} GB" if rate >= 1e9 else f"{rate / 1e6:.0f} MB"


def device_to_look_at(asked: str) -> torch.device:
    """Return the device for auto, cpu, cuda or cuda:N; the CPU if torch can use no GPU.

    Unlike training, which refuses then, the doctor is to say why. UserError for other names and for
    a number that is too high.
    """
    matched = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", asked)
    if not matched:
        raise UserError(f"Device {asked!r} is not known.", "Use auto, cpu, cuda or cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cpu" or not count:
        return torch.device("cpu")
    number = int(matched[1] or 0)
    if number >= count:
        last = f"cuda:{count - 1}"
        raise UserError(f"There is no {asked}: the last GPU is {last}.", f"Use {last} or less.")
    return torch.device("cuda" if asked == "auto" else asked)
