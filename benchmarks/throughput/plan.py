"""Plans of bench-throughput: for a GPU, for a quick run, and for a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from accelssl.benchmarks.throughput.step_windows import Windows
from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.decode.decoding import BOUNDS
from accelssl.shards.write.worker_pool import usable_cores

SIZE = 240
Part = Literal["decoder", "loader", "step", "live"]
PARTS: tuple[Part, ...] = get_args(Part)
GPU_CASES = (
    UNCOMPRESSED,
    Compression(16, 0.5),
    Compression(16, 0.75),
    Compression(30, 0.0),
    Compression(30, 0.5),
    Compression(48, 0.5),
)
FEW_CASES = (UNCOMPRESSED, Compression(30, 0.5))


@dataclass(frozen=True)
class Plan:
    """Every model with every compression, in batches of `batch` pairs.

    threads: that decode, as many as in training, and workers of torchvision's loader. only: the one
    part to measure, None for all. set_batches: of the set that is made where none is named.
    """

    models: tuple[str, ...]
    compressions: tuple[Compression, ...]
    batch: int
    threads: int
    windows: Windows
    set_batches: int = 24
    only: Part | None = None
    has_peers: bool = True

    @property
    def has_steps(self) -> bool:
        return self.only in (None, "step", "live")

    @property
    def has_live(self) -> bool:
        return self.only in (None, "live")

    @property
    def has_data(self) -> bool:
        return self.only != "step"

    def has(self, part: Part) -> bool:
        """Return True if the plan measures this part."""
        return self.only in (None, part)


def default_plan(device: torch.device, quick: bool) -> Plan:
    """All of it in under nine minutes of an H100; less if `quick`; under two minutes of a CPU."""
    threads = usable_cores()
    if device.type == "cpu":
        windows = Windows(2, 1, warm_up=1) if quick else Windows(3, 1, warm_up=1)
        return Plan(("vit_tiny_patch16_224",), FEW_CASES, 16, threads, windows, has_peers=not quick)
    if quick:
        windows = Windows(3, 4, least_s=0.5)
        return Plan(("vit_small_patch16_224",), FEW_CASES, 512, threads, windows, has_peers=False)
    models = ("vit_base_patch16_224", "vit_small_patch16_224")
    return Plan(models, GPU_CASES, 512, threads, Windows(5, 6, least_s=0.6))


def plan_of(
    device: torch.device,
    quick: bool,
    only: str | None,
    models: str | None,
    compressions: str | None,
    batch: int | None,
    threads: int | None,
    steps: int | None,
) -> Plan:
    """default_plan with what the command line gave (not None). UserError for what it cannot be."""
    plan = default_plan(device, quick)
    if models is not None:
        plan = replace(plan, models=parse_models(models))
    if compressions is not None:
        plan = replace(plan, compressions=parse_compressions(compressions))
    plan = replace(
        plan,
        only=None if only is None else parse_part(only),
        batch=plan.batch if batch is None else batch,
        threads=plan.threads if threads is None else threads,
        windows=replace(plan.windows, steps=plan.windows.steps if steps is None else steps),
    )
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raise UserError for a plan that cannot be measured."""
    for name in ("models", "compressions"):
        values = getattr(plan, name)
        if not values:
            raise UserError(
                f"There are no {name} to measure.", "Name one, or leave the option out."
            )
        if len(set(values)) < len(values):
            said = ", ".join(map(str, values))
            raise UserError(f"--{name} names one twice: {said}.", "Name each once.")
    for option, value, smallest in (("--batch", plan.batch, 2), ("--steps", plan.windows.steps, 1)):
        if value < smallest:
            raise UserError(f"{option} {value} makes no sense.", f"Use {smallest} or more.")
    least, most = BOUNDS["threads"]
    if not least <= plan.threads <= most:
        raise UserError(
            f"--threads {plan.threads} makes no sense.", f"Use a number from {least} to {most}."
        )
    for compression in plan.compressions:
        compression.keep(SIZE)


def parse_part(text: str) -> Part:
    """Return the part that --only names."""
    for part in PARTS:
        if part == text:
            return part
    raise UserError(
        f"--only {text} is not something to measure.", f"Use one of {', '.join(PARTS)}, kernel."
    )


def parse_models(text: str) -> tuple[str, ...]:
    """Parse model names separated by commas."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def parse_compressions(text: str) -> tuple[Compression, ...]:
    """Parse P:DROP pairs separated by commas: 16:0,30:0.5. Raise UserError for other text."""
    return tuple(_compression(part.strip()) for part in text.split(",") if part.strip())


def _compression(text: str) -> Compression:
    p, colon, drop = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return Compression(int(p), float(drop))
    except ValueError:
        raise UserError(
            f"--compressions has {text!r}, which is no patch side and drop.",
            "Write P:DROP with commas between, for example 16:0,30:0.5.",
        ) from None


def strongest(compressions: Sequence[Compression]) -> Compression:
    """Return the compression that keeps the fewest patches."""
    return min(compressions, key=lambda compression: compression.keep(SIZE))
