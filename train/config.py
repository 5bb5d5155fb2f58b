"""Everything that determines a run, as one frozen value that refuses what makes no sense."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.pipeline.compress.compression import Compression
from accelssl.train import method
from accelssl.train.cost import Convention
from accelssl.train.method import ALGORITHMS
from accelssl.train.schedule import Schedule, Stage, from_json


@dataclass(frozen=True)
class TrainConfig:
    """A resolved run. Lengths in pixels, budget in units, fractions of the budget in 0..1.

    base_lr is the learning rate per 256 images (times batch / 256 is the peak); warmup the share of
    the budget it rises over; min_area the smallest crop's share of the image. MoCo alone has
    momentum, of its key encoder at the start, and symmetric: both views are query and key, instead
    of one pair an image. threads is the number
    that decode, and readers, prefetch, hw_load, preallocated_px how, as the loader's options say;
    precision "bf16" or "fp32".
    """

    algo: str
    model: str
    data: str
    budget: float
    schedule: Schedule
    size: int = 240
    batch: int = 512
    base_lr: float = 2e-4
    weight_decay: float = 0.1
    warmup: float = 0.1
    temperature: float = 0.1
    head_hidden: int = 4096
    head_out: int = 256
    momentum: float = 0.99
    symmetric: bool = False
    min_area: float = 0.08
    seed: int = 0
    precision: str = "fp32"
    threads: int = 2
    readers: int | None = None
    prefetch: int = 2
    hw_load: float = 0.9
    preallocated_px: int = 0
    eval_every: float = 0.0
    convention: Convention = Convention.PATCHES196

    def __post_init__(self) -> None:
        if self.algo not in ALGORITHMS:
            raise UserError(
                f"The algorithm {self.algo!r} is not known.", f"Use {', '.join(ALGORITHMS)}."
            )
        _require(self.batch >= 2, "--batch", self.batch, "at least 2: pairs need negatives")
        _require(self.base_lr > 0, "--lr", self.base_lr, "above 0")
        _require(self.weight_decay >= 0, "--weight-decay", self.weight_decay, "0 or more")
        _require(0 <= self.warmup < 1, "--warmup", self.warmup, "at least 0 and below 1")
        _require(self.temperature > 0, "--temperature", self.temperature, "above 0")
        _require(0 <= self.momentum <= 1, "--momentum", self.momentum, "from 0 to 1, best 0.99")
        if self.symmetric and self.algo != "moco":
            raise UserError(
                f"--symmetric has no effect with {self.algo}.",
                "Leave it out, or use --algo moco.",
            )
        _require(0 < self.min_area <= 1, "--min-area", self.min_area, "above 0 and at most 1")
        _require(0 <= self.eval_every <= 1, "--eval-every", self.eval_every, "from 0 to 1")
        _require(self.threads >= 1, "--threads", self.threads, "at least 1")
        _require((self.readers or 0) >= 0, "--readers", self.readers or 0, "of 0 or more")
        _require(1 <= self.prefetch <= 64, "--prefetch", self.prefetch, "from 1 to 64")
        _require(0 <= self.hw_load <= 1, "--hw-load", self.hw_load, "from 0 to 1")
        _require(self.preallocated_px >= 0, "--preallocate", self.preallocated_px, "of 0 or more")
        _require(0 <= self.seed < 2**32, "--seed", self.seed, "from 0 to 2^32 - 1")
        _require(self.head_hidden >= 1, "--head-hidden", self.head_hidden, "at least 1")
        if self.precision not in ("bf16", "fp32"):
            raise UserError(f"Precision {self.precision!r} is not known.", "Use bf16 or fp32.")
        _require(self.size >= 16, "--size", self.size, "at least 16, best 240")
        for stage in self.schedule.stages:
            stage.compression.keep(self.size)
        dearest = max(self.sample_cost(stage) for stage in self.schedule.stages)
        if self.budget < self.batch * dearest:
            raise UserError(
                f"A budget of {self.budget:g} units does not pay for one step of {self.batch} "
                f"images at {dearest:.3g} units each.",
                f"Use --budget {math.ceil(self.batch * dearest)} or more, or a smaller --batch.",
            )

    @property
    def peak_lr(self) -> float:
        return self.base_lr * self.batch / 256

    def sample_cost(self, stage: Stage) -> float:
        """Units an image costs in this stage."""
        return method.sample_cost(
            self.algo, stage.compression, self.size, self.convention, symmetric=self.symmetric
        )

    def compressions(self, stage: Stage) -> tuple[Compression, ...]:
        """What a step takes in this stage, in the order of the objective's arguments."""
        return method.compressions(self.algo, stage.compression, symmetric=self.symmetric)

    @property
    def decays_vectors(self) -> bool:
        """Whether weight decay is on biases, norms and the like too: as the method's authors do."""
        return self.algo == "moco"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"schedule": self.schedule.to_json()}


def _require(holds: bool, option: str, value: float, need: str) -> None:
    if not holds:
        raise UserError(f"{option} {value:g} makes no sense.", f"Use a value {need}.")


def read_config(path: Path) -> TrainConfig:
    """The config.json of a run. UserError when it is missing or not ours."""
    try:
        fields = json.loads(path.read_text())
        fields["schedule"] = from_json(fields["schedule"])
        fields["convention"] = Convention(fields["convention"])
        return TrainConfig(**fields)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not the configuration of a run ({error}).",
            "Point at the folder that accelssl train wrote with --out.",
        ) from None


def override(config: TrainConfig, options: dict[str, Any]) -> TrainConfig:
    """`config` with the options that were given (not None)."""
    return replace(config, **{k: v for k, v in options.items() if v is not None})


_OR_RESTART = ", add --restart-epoch to change it where an epoch begins"


def refuse_changes(config: TrainConfig, options: dict[str, Any]) -> None:
    """UserError when a given option (not None) differs from the run that is to be resumed."""
    for name, value in options.items():
        stored = getattr(config, name)
        if value is not None and value != stored:
            raise UserError(
                f"The run was started with {name} {stored}, not {value}.",
                f"Leave the option out to resume{_OR_RESTART if name == 'batch' else ''}, "
                "or start another run with another --out.",
            )
