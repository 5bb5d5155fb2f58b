"""What --batch auto found, as a table for the terminal."""

from accelssl.formats import ABSENT, aligned, quantity
from accelssl.train.config.config import TrainConfig
from accelssl.train.plan.auto_batch import BatchChoice, Measured

HEADS = "stage", "compression", "tokens", "batch", "units/s", "memory", "limited by"


def batch_text(choice: BatchChoice, config: TrainConfig) -> str:
    """What each stage proposes, what was taken, and the learning rate that `config` has of it."""
    rows = [list(HEADS), *(_row(each, choice.ranks) for each in choice.measured)]
    shares = f", {choice.batch // choice.ranks} on each rank" if choice.ranks > 1 else ""
    return "\n".join(
        [
            *aligned(rows),
            f"--batch {choice.batch}{shares}: the largest proposed{_of_those(choice)}.",
            "units/s are of steps alone, without data.",
            f"Rates are for 256 images: the peak learning rate is {config.base_lr:g} x "
            f"{choice.batch} / 256 = {config.peak_lr:.3g}.",
        ]
    )


def _of_those(choice: BatchChoice) -> str:
    is_known = any(each.proposal.memory_bytes is not None for each in choice.measured)
    return " that fits the memory in all stages" if is_known else ""


def _row(each: Measured, ranks: int) -> list[str]:
    found = each.proposal
    memory = ABSENT if found.memory_bytes is None else f"{found.memory_bytes / 2**30:.1f} GiB"
    return [
        ", ".join(map(str, each.stages)),
        str(each.compression),
        f"{each.tokens:,}",
        f"{found.batch * ranks:,}",
        quantity(found.units_per_s),
        memory,
        found.limit,
    ]
