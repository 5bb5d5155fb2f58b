"""Result of bench-throughput: as data, as a table for the terminal, as a page."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from accelssl.benchmarks.kernel.result import Goal
from accelssl.benchmarks.matrix_peak import MatrixPeak
from accelssl.benchmarks.throughput.limit import Limit, Parts, limit
from accelssl.benchmarks.throughput.row import DECODER, LOADER, TORCHVISION, Row, SourceTime
from accelssl.benchmarks.timing import Timing
from accelssl.pipeline.compression import UNCOMPRESSED

GOAL_MODEL = "vit_base_patch16_224"
LIVE_GOALS = {(16, 0.75): 0.975, (30, 0.5): 0.96, (48, 0.5): 0.93}
DOUBTFUL = 1.04
TAX_GOAL_S, TAX_PAIRS = 2e-3, 512


@dataclass(frozen=True)
class ThroughputBench:
    """All of it. `environment`: hardware, versions and command, by name. pictures: what they are.

    copy_s: a batch of encoded images to the GPU.
    """

    environment: dict[str, Any]
    pictures: str
    batch: int
    only: str | None
    peak: MatrixPeak | None
    copy_s: float | None
    sources: tuple[SourceTime, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    elapsed_s: float

    def source(self, name: str) -> list[SourceTime]:
        return [source for source in self.sources if source.source == name]

    def of_peak(self, row: Row) -> float | None:
        return row.flops_per_s / self.peak.flops_per_s if self.peak else None

    def uncompressed(self, model: str) -> Row | None:
        """Return the baseline row of a model's speed-ups."""
        plain = (UNCOMPRESSED.p, UNCOMPRESSED.drop)
        rows = (row for row in self.rows if (row.model, row.p, row.drop) == (model, *plain))
        return next(rows, None)

    def counted(self, row: Row) -> float | None:
        """Return the units of an uncompressed image divided by the units of this row's image."""
        plain = self.uncompressed(row.model)
        return plain.sample_cost / row.sample_cost if plain else None

    def realised(self, row: Row) -> float | None:
        """Return the live run's rate divided by the uncompressed live run's rate."""
        plain = self.uncompressed(row.model)
        if not (plain and plain.live and row.live):
            return None
        return plain.live.median_s / row.live.median_s

    def realised_of_counted(self, row: Row) -> float | None:
        counted, realised = self.counted(row), self.realised(row)
        return realised / counted if counted and realised else None

    def alone_of_counted(self, row: Row) -> float | None:
        """Return the fraction of the counted speed-up that the steps realise without data."""
        plain, counted = self.uncompressed(row.model), self.counted(row)
        if not (plain and counted):
            return None
        return plain.synthetic.median_s / row.synthetic.median_s / counted

    def limit(self, row: Row) -> Limit | None:
        """Return the limit of the live run; use the loader rate measured nearest in tokens.

        None where too little was measured to tell.
        """
        if row.live is None:
            return None
        decoder = self.source(DECODER)
        found = limit(
            Parts(
                step_s=row.synthetic.median_s,
                live_s=row.live.median_s,
                launch_s=row.launch_s,
                loader_s=self._loader_s(row),
                decoder_s=decoder[0].time.median_s if decoder else None,
                copy_s=self.copy_s,
                op_s=row.op.median_s if row.op else None,
            )
        )
        return found if found in ("step", "launch") or self.source(LOADER) else None

    def _loader_s(self, row: Row) -> float | None:
        loaders = self.source(LOADER)
        if not loaders:
            return None
        keep_of = {(r.p, r.drop): r.keep for r in self.rows}

        def gap(loader: SourceTime) -> int:
            return abs(keep_of.get((loader.p or 0, loader.drop or 0.0), 0) - row.keep)

        return min(loaders, key=gap).time.median_s

    def doubts(self) -> list[str]:
        """Return a warning for each row whose live run was faster than its step without data."""
        return [
            f"{row.name}: live at {row.of_synthetic:.0%} of the rate of the step alone. Something "
            "else slowed the step down: measure again on an idle machine."
            for row in self.rows
            if row.of_synthetic is not None and row.of_synthetic > DOUBTFUL
        ]

    def goals(self) -> list[Goal]:
        """Return the goals for a GPU and all parts; a CPU has no goals."""
        if self.environment["device"] == "cpu" or self.only:
            return []
        base = [row for row in self.rows if row.model == GOAL_MODEL]
        live = [
            Goal.at_least(
                least,
                "{:.3f}",
                f"of the synthetic rate live, {GOAL_MODEL} p{p} d{drop:g}",
                [
                    (row.of_synthetic, row.name)
                    for row in base
                    if (row.p, row.drop) == (p, drop) and row.of_synthetic is not None
                ],
            )
            for (p, drop), least in LIVE_GOALS.items()
        ]
        taxes = [
            (1e3 * row.tax_s * TAX_PAIRS / row.pairs, row.name)
            for row in base
            if row.tax_s is not None
        ]
        return [
            *live,
            Goal.at_most(
                1e3 * TAX_GOAL_S,
                "{:.2f} ms",
                f"data tax for {TAX_PAIRS} pairs, {GOAL_MODEL}",
                taxes,
            ),
            self._loader_goal(0.95, "{:.1%}", "of the decoder's rate, loader alone", DECODER),
            self._loader_goal(50, "{:.3g} times", f"the rate of {TORCHVISION}", TORCHVISION),
        ]

    def _loader_goal(self, least: float, form: str, what: str, against: str) -> Goal:
        others = self.source(against)
        ratios = [
            (loader.images_per_s / other.images_per_s, loader.name)
            for loader in self.source(LOADER)
            for other in others
        ]
        return Goal.at_least(least, form, what, ratios)

    def __str__(self) -> str:
        from accelssl.benchmarks.throughput.page import terminal_table

        return terminal_table(self)

    def to_markdown(self, picture: str) -> str:
        """Return the page. picture: the name of the plot in the page's folder."""
        from accelssl.benchmarks.throughput.page import page

        return page(self, picture)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ThroughputBench":
        fields = json.loads(text)
        if fields["peak"]:
            fields["peak"] = MatrixPeak(**_timed(fields["peak"], "time"))
        fields["sources"] = tuple(SourceTime(**_timed(s, "time")) for s in fields["sources"])
        times = ("synthetic", "op", "live")
        fields["rows"] = tuple(Row(**_timed(row, *times)) for row in fields["rows"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)


def _timed(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return fields | {name: Timing(**fields[name]) for name in names if fields[name]}
