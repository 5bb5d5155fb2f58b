"""Plans of the kernel benchmark: for a GPU, for a quick run, and for a CPU."""

from dataclasses import dataclass

import torch

from accelssl.benchmarks.kernel.inputs import SIZE
from accelssl.errors import UserError
from accelssl.pipeline.compress.op import Implementation
from accelssl.pipeline.compression import Compression

PEER_CASES = (Compression(16, 0.75), Compression(30, 0.5), Compression(48, 0.5))


@dataclass(frozen=True)
class Plan:
    """Plan of a measurement: every p with every drop, in batches of each number of crops.

    peer_cases, with the largest batch: where the other ways are measured. runs: replays a figure.
    """

    crops: tuple[int, ...]
    sides_p: tuple[int, ...]
    drops: tuple[float, ...]
    implementations: tuple[Implementation, ...]
    runs: int
    compiles: bool

    @property
    def peer_cases(self) -> list[Compression]:
        return [c for c in PEER_CASES if c.p in self.sides_p and c.drop in self.drops]


def default_plan(device: torch.device, quick: bool) -> Plan:
    """All of it in under four minutes of a GPU; some of it if `quick`; seconds on a CPU."""
    if device.type == "cpu":
        return Plan((8,), (16,) if quick else (16, 30), (0.75, 0.5), ("torch",), 3, False)
    both: tuple[Implementation, ...] = ("cuda", "triton")
    if quick:
        return Plan((1024,), (16, 30), (0.5, 0.75), both, 10, False)
    return Plan((512, 1024), (16, 24, 30, 48), (0, 0.5, 0.75, 0.9), both, 20, True)


def check(plan: Plan) -> None:
    for name in ("crops", "sides_p", "drops", "implementations"):
        if not getattr(plan, name):
            raise UserError(
                f"There are no {name} to measure.", "Give at least one, or none at all."
            )
    if min(plan.crops) < 1:
        raise UserError(f"A batch of {min(plan.crops)} crops is empty.", "Use at least 1.")
    for p in plan.sides_p:
        for drop in plan.drops:
            Compression(p, drop).keep(SIZE)
