"""The configuration of a run: all settings in one frozen object, which checks their values."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline.compression import Compression, fitting_sides, sizes_near
from accelssl.pipeline.decode.decoding import BOUNDS, Decoding
from accelssl.train.config.auto import BEFORE, Auto, compared_by
from accelssl.train.config.cost import Convention
from accelssl.train.config.ranges import require
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.methods.dino import DINOMethod
from accelssl.train.methods.method import METHODS, Method, method_named
from accelssl.train.methods.moco import MoCoMethod

MOST_READERS = 256
DEFAULT_COMPRESSION = Compression(30, 0.5)

OF_THE_MACHINE = (
    *("precision", "threads", "readers", "prefetch"),
    *("hw_load", "decoders", "preallocated_px"),
)
"""Settings that depend on the machine and do not define the run."""


@dataclass(frozen=True)
class TrainConfig:
    """Complete configuration of a run. Lengths are in pixels, the budget in units, shares in 0..1.

    base_lr: the learning rate per 256 images. The peak rate is base_lr * batch / 256.
    warmup: the share of the budget over which the learning rate rises.
    min_area: the smallest crop's share of the image.
    final_weight_decay: the weight decay at the end, reached along half a cosine; None for constant.
    clip: the largest norm of a parameter's gradient, 0 for no clipping.
    precision: "bf16" or "fp32".
    threads: the number of decoding threads.
    readers, prefetch, hw_load, decoders, preallocated_px: see the loader's options.
    keep_latest, keep_at: keep the last keep_latest checkpoints, and those at the shares keep_at of
    the budget.
    auto: settings of a run that chooses its compressions. schedule then applies only before the
    first choice.

    The files in train/methods describe the settings whose defaults come from a method.
    """

    algo: str
    model: str
    data: str
    budget: float
    schedule: Schedule
    size: int = Method.size
    batch: int = 512
    base_lr: float = 2e-4
    weight_decay: float = 0.1
    warmup: float = 0.1
    temperature: float = Method.temperature
    head_hidden: int = Method.head_hidden
    head_out: int = Method.head_out
    momentum: float = MoCoMethod.momentum
    symmetric: bool = MoCoMethod.symmetric
    min_area: float = Method.min_area
    final_weight_decay: float | None = None
    clip: float = 0.0
    mode: str = DINOMethod.mode
    n_local: int = DINOMethod.n_local
    local_size: int = DINOMethod.local_size
    local_min_area: float = DINOMethod.local_min_area
    local_max_area: float = DINOMethod.local_max_area
    prototypes: int = DINOMethod.prototypes
    teacher_temp_start: float = DINOMethod.teacher_temp_start
    teacher_temp: float = DINOMethod.teacher_temp
    teacher_warmup: float = DINOMethod.teacher_warmup
    frozen_last: float = DINOMethod.frozen_last
    drop_path: float = DINOMethod.drop_path
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
        why = ": pairs need negatives" if method_named(self.algo).has_negatives else ""
        require(self.batch >= 2, "batch", self.batch, f"at least 2{why}")
        require(self.base_lr > 0, "base_lr", self.base_lr, "above 0")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "of 0 or more")
        require(0 <= self.warmup < 1, "warmup", self.warmup, "at least 0 and below 1")
        self._check_optimizer()
        self._check_method()
        require(0 <= self.eval_every <= 1, "eval_every", self.eval_every, "from 0 to 1")
        readers = self.readers or 0
        require(0 <= readers <= MOST_READERS, "readers", readers, f"from 0 to {MOST_READERS}")
        for name, (least, most) in BOUNDS.items():
            need = f"from {least} to {most}"
            if name == "threads":
                need += ", or 0 for all cores"
            value = getattr(self, name)
            if value is not None:
                require(least <= value <= most, name, value, need)
        require(self.keep_latest >= 0, "keep_latest", self.keep_latest, "of 0 or more")
        for share in self.keep_at:
            require(0 <= share <= 1, "keep_at", share, "from 0 to 1, shares of the budget")
        require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2^32 - 1")
        if self.precision not in ("bf16", "fp32"):
            raise UserError(f"Precision {self.precision!r} is not known.", "Use bf16 or fp32.")
        require(self.size >= 16, "size", self.size, "at least 16, best 240")
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
        """Raise UserError if a stage keeps no patch of a crop."""
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
        require(final is None or final >= 0, "final_weight_decay", final or 0, "of 0 or more")
        require(self.clip >= 0, "clip", self.clip, "above 0, or 0 not to clip")

    def _check_method(self) -> None:
        """Raise UserError for settings out of their range, or set for another method."""
        chosen = method_named(self.algo)
        self.method.check(self.schedule)
        for method in METHODS.values():
            names = [name for name in method.only_here if name not in chosen.own_settings()]
            if any(getattr(self, name) != getattr(method, name) for name in names):
                options, one = [option_of(name) for name in names], len(names) == 1
                what = f"{options[0]} has" if one else f"{_all_of(options)} have"
                raise UserError(
                    f"{what} no effect with {self.algo}.",
                    f"Leave {'it' if one else 'them'} out, or use --algo {method.name}.",
                )
        for method in METHODS.values():
            method.of(vars(self)).check(self.schedule)

    @property
    def method(self) -> Method:
        """Return the method with its settings."""
        return method_named(self.algo).of(vars(self))

    @property
    def peak_lr(self) -> float:
        return self.base_lr * self.batch / 256

    def sample_cost(self, stage: Stage) -> float:
        """Return the cost of an image in this stage, in units."""
        return self.method.sample_cost(stage.compression, self.convention)

    def compressions(self, stage: Stage) -> tuple[Compression, ...]:
        """Return the compressions of a step's views, in the order of the objective's arguments."""
        return self.method.compressions(stage.compression)

    @property
    def decays_vectors(self) -> bool:
        """Return True if weight decay includes biases and norms, as the method's authors chose."""
        return self.method.decays_vectors

    def to_json(self) -> dict[str, Any]:
        """Return the content of config.json, which read_config reads."""
        schedule = "auto" if self.auto else self.schedule.to_json()
        chooses = self.auto.to_json() if self.auto else None
        return asdict(self) | {"schedule": schedule, "auto": chooses}


def _all_of(options: list[str]) -> str:
    return f"{', '.join(options[:-1])} and {options[-1]}"


def override(config: TrainConfig, options: dict[str, Any]) -> TrainConfig:
    """Return `config` with the given options (not None) replaced."""
    return replace(config, **{k: v for k, v in options.items() if v is not None})
