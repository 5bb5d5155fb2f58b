"""Where a step's time went: as data, as a table for the terminal, as a page."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from accelssl.benchmarks.matrix_peak import MatrixPeak
from accelssl.benchmarks.step.kernels import PARTS, Part, TracedStep, Work
from accelssl.benchmarks.throughput.plan import SIZE
from accelssl.benchmarks.timing import Timing
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.methods.simclr import SimCLRMethod

LONGEST = 40
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class PartTime:
    """A part of a step: a mean of the profiled ones. floor_s: None where there is none."""

    part: Part
    seconds: float
    launches: int
    floor_s: float | None


@dataclass(frozen=True)
class NamedTime:
    """All kernels of one name within a part of a step."""

    name: str
    part: Part
    seconds: float
    launches: int


@dataclass(frozen=True)
class StepRow:
    """A model with a compression. tokens: of a view, with CLS. step: timed without the profiler.

    parts: all of them, gaps being the last, which add up to the profiled step. longest: the kernels
    that took most of it.
    """

    model: str
    p: int
    drop: float
    tokens: int
    pairs: int
    step: Timing
    parts: tuple[PartTime, ...]
    longest: tuple[NamedTime, ...]

    @property
    def profiled_s(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def launches(self) -> int:
        return sum(part.launches for part in self.parts)

    @property
    def floor_s(self) -> float:
        """Return the sum of the floors of all parts with a floor."""
        return sum(part.floor_s or 0.0 for part in self.parts)

    @property
    def sample_cost(self) -> float:
        """Return the cost of an image in units."""
        return SimCLRMethod(size=SIZE).sample_cost(Compression(self.p, self.drop))

    @property
    def is_uncompressed(self) -> bool:
        return Compression(self.p, self.drop) == UNCOMPRESSED

    @property
    def name(self) -> str:
        return f"{self.model} p{self.p} d{self.drop:g}, {self.tokens} tokens"


def part_times(steps: Sequence[TracedStep], floors: Mapping[Part, float]) -> tuple[PartTime, ...]:
    """Return every part's means over steps."""
    found = _means(steps, lambda work: work.part)
    found["gaps"] = sum(step.idle_s for step in steps) / len(steps), 0
    return tuple(PartTime(part, *found.get(part, (0.0, 0)), floors.get(part)) for part in PARTS)


def longest_kernels(steps: Sequence[TracedStep]) -> tuple[NamedTime, ...]:
    """Return the LONGEST longest kernels by name, in a mean over steps."""
    found = _means(steps, lambda work: (work.name, work.part))
    longest = sorted(found.items(), key=lambda item: item[1], reverse=True)[:LONGEST]
    return tuple(NamedTime(*name_part, *mean) for name_part, mean in longest)


def _means(steps: Sequence[TracedStep], key: Callable[[Work], K]) -> dict[K, tuple[float, int]]:
    """Return seconds and launches per step for each key."""
    works: dict[K, list[float]] = {}
    for work in (work for step in steps for work in step.works):
        works.setdefault(key(work), []).append(work.own_s)
    count = len(steps)
    return {key: (sum(own_s) / count, round(len(own_s) / count)) for key, own_s in works.items()}


@dataclass(frozen=True)
class StepBench:
    """All of it. `environment`: hardware, versions and command, by name. steps: profiled a row."""

    environment: dict[str, Any]
    steps: int
    peak: MatrixPeak
    copy_bytes_per_s: float
    rows: tuple[StepRow, ...]
    notes: tuple[str, ...]
    elapsed_s: float

    def of_peak(self, row: StepRow) -> float:
        """Return the encoder's matrix product time at peak rate as a share of the step's time."""
        floors = (part.floor_s or 0.0 for part in row.parts if part.part == "matrix products")
        return sum(floors) / row.step.median_s

    def alone_of_counted(self, row: StepRow) -> float | None:
        """Return the realised fraction of the counted speed-up over the uncompressed step."""
        plain = next((r for r in self.rows if r.model == row.model and r.is_uncompressed), None)
        if plain is None:
            return None
        return plain.step.median_s / row.step.median_s / (plain.sample_cost / row.sample_cost)

    def __str__(self) -> str:
        from accelssl.benchmarks.step.page import terminal_table

        return terminal_table(self)

    def to_markdown(self) -> str:
        from accelssl.benchmarks.step.page import page

        return page(self)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "StepBench":
        fields = json.loads(text)
        fields["peak"] = MatrixPeak(**fields["peak"] | {"time": Timing(**fields["peak"]["time"])})
        fields["rows"] = tuple(_row(row) for row in fields["rows"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)


def _row(fields: dict[str, Any]) -> StepRow:
    return StepRow(
        **fields
        | {
            "step": Timing(**fields["step"]),
            "parts": tuple(PartTime(**part) for part in fields["parts"]),
            "longest": tuple(NamedTime(**kernel) for kernel in fields["longest"]),
        }
    )
