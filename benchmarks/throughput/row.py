"""The lines of bench-throughput's tables: a source of images alone, a model with a compression.

Rates of images are of pairs: an image counts once, though both its views are trained on.
"""

from dataclasses import dataclass

from accelssl.benchmarks.timing import Timing

DECODER, LOADER, COLD_LOADER = "decoder", "loader", "loader, cold files"
TORCHVISION = "torchvision DataLoader"


@dataclass(frozen=True)
class SourceTime:
    """A source of images alone. time: of one batch of `images`. p, drop: None where no token is
    made. cpu_cores: kept busy meanwhile; None where its processes cannot be asked."""

    source: str
    p: int | None
    drop: float | None
    images: int
    time: Timing
    cpu_cores: float | None

    @property
    def images_per_s(self) -> float:
        return self.images / self.time.median_s

    @property
    def name(self) -> str:
        return self.source if self.p is None else f"{self.source}, p{self.p} d{self.drop:g}"


@dataclass(frozen=True)
class Row:
    """A model with a compression; `keep` patch tokens a view. What was not measured is None.

    sample_cost: units an image costs. op: the tokens of all views of a batch. launch_s: until a
    step is under way on an idle GPU. first_s: the first step, with all that is compiled for it.
    flops: of a step. memory_bytes: peak of torch's tensors, and all that others hold of the GPU.
    """

    model: str
    p: int
    drop: float
    keep: int
    pairs: int
    sample_cost: float
    flops: int
    synthetic: Timing
    launch_s: float | None
    first_s: float
    op: Timing | None = None
    live: Timing | None = None
    cpu_cores: float | None = None
    memory_bytes: int | None = None

    @property
    def compression(self) -> str:
        return f"p{self.p} d{self.drop:g}"

    @property
    def name(self) -> str:
        return f"{self.model} {self.compression}"

    @property
    def best(self) -> Timing:
        """Return the live run if it exists, else the synthetic run."""
        return self.live or self.synthetic

    @property
    def images_per_s(self) -> float:
        return self.pairs / self.best.median_s

    @property
    def tokens_per_s(self) -> float:
        """Patch tokens of both views that the encoder sees."""
        return 2 * self.keep * self.images_per_s

    @property
    def units_per_s(self) -> float:
        return self.sample_cost * self.images_per_s

    @property
    def of_synthetic(self) -> float | None:
        """Return the live run's rate as a fraction of the rate of the step without data."""
        return self.synthetic.median_s / self.live.median_s if self.live else None

    @property
    def tax_s(self) -> float | None:
        """Return the seconds that data adds to a step."""
        return self.live.median_s - self.synthetic.median_s if self.live else None

    @property
    def flops_per_s(self) -> float:
        """Return the operations per second of the step without data."""
        return self.flops / self.synthetic.median_s
