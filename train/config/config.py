"""Everything that determines a run, as one frozen value that refuses what makes no sense."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline.compression import Compression, fitting_sides, sizes_near
from accelssl.pipeline.decode.decoding import BOUNDS, Decoding
from accelssl.train.config.auto import BEFORE, Auto, compared_by
from accelssl.train.config.cost import Convention
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.methods.dino import MODES
from accelssl.train.methods.method import Method, method_named

MOST_READERS = 256
DEFAULT_COMPRESSION = Compression(30, 0.5)

OF_THE_MACHINE = (
    *("precision", "threads", "readers", "prefetch"),
    *("hw_load", "decoders", "preallocated_px"),
)
"""Settings that suit where a run is, and not what it is."""

_TEMPERATURES = 0.001, 100.0
"""What a softmax in float32 and a loss still work at, with room to spare."""
_MIN_PROTOTYPES = 16


@dataclass(frozen=True)
class TrainConfig:
    """A resolved run. Lengths in pixels, budget in units, fractions of the budget in 0..1.

    base_lr is the learning rate per 256 images (times batch / 256 is the peak); warmup the share of
    the budget it rises over; min_area the smallest crop's share of the image. With
    final_weight_decay, weight decay goes there along half a cosine; clip is the largest norm of a
    parameter's gradient, 0 for any. MoCo and DINO have momentum, of the key encoder at the start.

    MoCo alone has symmetric: both views are query and key, instead of one pair an image. DINO alone
    has mode, "paper" or "official" (see model/dino.py); n_local small crops, of local_size and of
    local_min_area to local_max_area of the image; prototypes; teacher_temp, from teacher_temp_start
    over the first teacher_warmup of the budget; frozen_last, for how much of it the prototypes keep
    still; drop_path, its query's stochastic depth. Its head_out is the bottleneck before the
    prototypes.

    threads is the number that decode, and readers, prefetch, hw_load, decoders, preallocated_px
    how, as the loader's options say; precision "bf16" or "fp32". Of the checkpoints, the last
    keep_latest stay and those at the shares keep_at of the budget.

    With auto the run chooses its compressions itself, and schedule is only what precedes that.
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
    final_weight_decay: float | None = None
    clip: float = 0.0
    mode: str = "paper"
    n_local: int = 0
    local_size: int = 96
    local_min_area: float = 0.05
    local_max_area: float = 0.25
    prototypes: int = 65536
    teacher_temp_start: float = 0.04
    teacher_temp: float = 0.07
    teacher_warmup: float = 0.125
    frozen_last: float = 0.0075
    drop_path: float = 0.0
    seed: int = 0
    precision: str = "fp32"
    threads: int = Decoding.threads
    readers: int | None = None
    prefetch: int = Decoding.prefetch
    hw_load: float | None = None
    decoders: int | None = None
    preallocated_px: int = Decoding.preallocated_px
    eval_every: float = 0.0
    keep_latest: int = 0
    keep_at: tuple[float, ...] = ()
    convention: Convention = Convention.PATCHES196
    auto: Auto | None = None

    def __post_init__(self) -> None:
        method_named(self.algo)
        why = "" if self.algo == "dino" else ": pairs need negatives"
        _require(self.batch >= 2, "batch", self.batch, f"at least 2{why}")
        _require(self.base_lr > 0, "base_lr", self.base_lr, "above 0")
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "of 0 or more")
        _require(0 <= self.warmup < 1, "warmup", self.warmup, "at least 0 and below 1")
        _require_temperature("temperature", self.temperature, "best 0.1 to 0.2")
        best = 0.996 if self.algo == "dino" else 0.99
        need = f"from 0 to 1, best {best:g}"
        _require(0 <= self.momentum <= 1, "momentum", self.momentum, need)
        if self.symmetric and self.algo != "moco":
            raise UserError(
                f"--symmetric has no effect with {self.algo}.",
                "Leave it out, or use --algo moco.",
            )
        self._check_optimizer()
        self._check_dino()
        _require(0 < self.min_area <= 1, "min_area", self.min_area, "above 0 and at most 1")
        _require(0 <= self.eval_every <= 1, "eval_every", self.eval_every, "from 0 to 1")
        readers = self.readers or 0
        _require(0 <= readers <= MOST_READERS, "readers", readers, f"from 0 to {MOST_READERS}")
        for name, (least, most) in BOUNDS.items():
            need = f"from {least} to {most}"
            if name == "threads":
                need += ", or 0 for all cores"
            value = getattr(self, name)
            if value is not None:
                _require(least <= value <= most, name, value, need)
        _require(self.keep_latest >= 0, "keep_latest", self.keep_latest, "of 0 or more")
        for share in self.keep_at:
            _require(0 <= share <= 1, "keep_at", share, "from 0 to 1, shares of the budget")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2^32 - 1")
        _require(self.head_hidden >= 1, "head_hidden", self.head_hidden, "at least 1")
        _require(self.head_out >= 1, "head_out", self.head_out, "at least 1")
        if self.precision not in ("bf16", "fp32"):
            raise UserError(f"Precision {self.precision!r} is not known.", "Use bf16 or fp32.")
        _require(self.size >= 16, "size", self.size, "at least 16, best 240")
        if self.auto and self.schedule != BEFORE:
            raise UserError(
                "A schedule was given to a run that chooses its compressions itself.",
                "Give either of them: a schedule, or auto.",
            )
        self._check_grid()
        if self.auto:
            self.auto.refuse_misfits(self.size)
        self._check_kept()
        dearest = max(self.sample_cost(stage) for stage in self.schedule.stages)
        if self.budget < self.batch * dearest:
            smaller = ", or a smaller --batch" if self.batch > 2 else ""
            raise UserError(
                f"A budget of {self.budget:g} units does not pay for one step of {self.batch} "
                f"images at {dearest:.3g} units each.",
                f"Use --budget {math.ceil(self.batch * dearest)} or more{smaller}.",
            )

    def _check_grid(self) -> None:
        sides = {stage.compression.p for stage in self.schedule.stages}
        unfit = next((p for p in sorted(sides) if self.size % p), None)
        if unfit is None:
            return
        sizes = sizes_near(self.size, sides)
        fitting = [str(p) for p in fitting_sides(self.size)]
        remedy = f"Use --size {sizes}."
        origin = self.schedule.origin
        if fitting and origin:
            remedy = (
                f"Use --size {sizes}, or in the place of that schedule --patch "
                f"{' or '.join(fitting)}, or a file with such patches alone."
            )
        elif fitting and len(self.schedule.stages) == 1:
            remedy = f"Use --patch {' or '.join(fitting)}, or --size {sizes}."
        whose = ", the default of --patch" if sides == {DEFAULT_COMPRESSION.p} else ""
        if origin:
            whose = f", which {origin} has"
        if self.auto:
            whose = compared_by("--schedule auto")
        raise UserError(
            f"A crop of {self.size} px (--size) cannot be cut into {unfit} px patches{whose}.",
            remedy,
        )

    def _check_kept(self) -> None:
        """Each stage leaves something of a crop."""
        try:
            for stage in self.schedule.stages:
                stage.compression.keep(self.size)
        except UserError as error:
            if not self.schedule.origin:
                raise
            what = f"{error.what.removesuffix('.')}, in {self.schedule.origin}."
            raise UserError(what, error.remedy) from None

    def _check_optimizer(self) -> None:
        final = self.final_weight_decay
        _require(final is None or final >= 0, "final_weight_decay", final or 0, "of 0 or more")
        _require(self.clip >= 0, "clip", self.clip, "above 0, or 0 not to clip")

    def _check_dino(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"--mode {self.mode!r} is not known.", f"Use {' or '.join(MODES)}.")
        if self.algo != "dino" and (self.n_local or self.mode != "paper" or self.drop_path):
            raise UserError(
                f"--local-crops, --mode and drop_path have no effect with {self.algo}.",
                "Leave them out, or use --algo dino.",
            )
        _require(self.n_local >= 0, "n_local", self.n_local, "of 0 or more, best 6 to 10")
        low, high = self.local_min_area, self.local_max_area
        _require(0 < low <= 1, "local_min_area", low, "above 0 and at most 1")
        _require(low <= high <= 1, "local_max_area", high, f"from {low:g} to 1")
        if self.n_local:
            self._check_small_crops()
        need = f"at least {_MIN_PROTOTYPES}, best 65536"
        _require(self.prototypes >= _MIN_PROTOTYPES, "prototypes", self.prototypes, need)
        best = "best 0.04 to 0.07"
        _require_temperature("teacher_temp", self.teacher_temp, best)
        _require_temperature("teacher_temp_start", self.teacher_temp_start, best)
        _require(0 <= self.teacher_warmup <= 1, "teacher_warmup", self.teacher_warmup, "0 to 1")
        _require(0 <= self.frozen_last <= 1, "frozen_last", self.frozen_last, "from 0 to 1")
        _require(0 <= self.drop_path < 1, "drop_path", self.drop_path, "from 0 to below 1")

    def _check_small_crops(self) -> None:
        fits = self.local_size >= 16 and self.local_size % 16 == 0
        _require(fits, "local_size", self.local_size, "that is a multiple of 16")
        if self.size <= self.local_size:
            each = math.lcm(*(stage.compression.p for stage in self.schedule.stages))
            larger = (self.local_size // each + 1) * each
            raise UserError(
                f"Crops of {self.size} px (--size) are not larger than DINO's small crops of "
                f"{self.local_size} px.",
                f"Use --size {larger} or more, or --local-crops 0.",
            )

    @property
    def method(self) -> Method:
        """The method with its settings."""
        return method_named(self.algo).of(vars(self))

    @property
    def peak_lr(self) -> float:
        return self.base_lr * self.batch / 256

    def sample_cost(self, stage: Stage) -> float:
        """Units an image costs in this stage."""
        return self.method.sample_cost(stage.compression, self.convention)

    def compressions(self, stage: Stage) -> tuple[Compression, ...]:
        """What a step takes in this stage, in the order of the objective's arguments."""
        return self.method.compressions(stage.compression)

    @property
    def decays_vectors(self) -> bool:
        """Whether weight decay is on biases, norms and the like too: as the method's authors do."""
        return self.algo == "moco"

    def to_json(self) -> dict[str, Any]:
        """As config.json has it: read_config reads it back."""
        schedule = "auto" if self.auto else self.schedule.to_json()
        chooses = self.auto.to_json() if self.auto else None
        return asdict(self) | {"schedule": schedule, "auto": chooses}


def _require(holds: bool, name: str, value: float, need: str) -> None:
    is_finite = math.isfinite(value)
    if not (holds and is_finite):
        kind = "value" if is_finite else "finite value"
        raise UserError(f"{option_of(name)} {value:g} makes no sense.", f"Use a {kind} {need}.")


def _require_temperature(name: str, value: float, best: str) -> None:
    least, most = _TEMPERATURES
    _require(least <= value <= most, name, value, f"from {least:g} to {most:g}, {best}")


def override(config: TrainConfig, options: dict[str, Any]) -> TrainConfig:
    """`config` with the options that were given (not None)."""
    return replace(config, **{k: v for k, v in options.items() if v is not None})
