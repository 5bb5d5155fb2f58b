"""The result of bench-throughput as text: tables for the terminal, a page of Markdown."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from accelssl.benchmarks.kernel.page import card
from accelssl.benchmarks.throughput.limit import MEANINGS
from accelssl.benchmarks.throughput.result import ThroughputBench
from accelssl.benchmarks.throughput.row import Row, SourceTime
from accelssl.benchmarks.timing import Timing
from accelssl.formats import duration

EXPLANATION = """\
Medians of windows of many steps, each window closed by one wait for the device; beside them the
10th and the 90th percentile. An image is a pair: it counts once, both its views are trained on.

- **step**: forward, backward and optimiser on fixed batches of tokens. **live**: the same steps fed
  by the loader, as `accelssl train` runs them. **tax**: what data adds to a step.
- **tokens/s**: patch tokens of both views through the encoder. **units/s**: budget units.
- **counted**, **realised**: units of an uncompressed image by those of this one; rate of the live
  run by that of the uncompressed live run of the same model. **step/counted**: what the steps alone
  realise of the counted speed-up, without data.
- **TFLOP/s**: all matrix products of forward and backward, each once (the frozen patch projection
  has no backward), by the time of the step alone. **of peak**: as a fraction of a square product's.
- **launch**: until a step is under way on an idle GPU. **first**: the first step of its shape, with
  all that is compiled for it. **op**: the tokens of both views from crops.
- **memory**: peak of torch's tensors, and what DALI and CUDA hold besides. **cores**: processor
  time of this process by time.
- **limit**: what to make faster first: launch, if the host needs 90% of the step's time to launch
  it; step, if the live run reaches 97% of it; else op, copy or decoder, by their times alone
  (benchmarks/throughput/limit.py has the rule).
"""

_COLUMNS = {
    "counted": "counted: the speed-up in units.",
    "realised": "realised: that of the live run by the clock.",
    "step/counted": "step/counted: what the steps alone realise of what is counted.",
    "live/step": "live/step: the share of the rate without data.",
    "10th to 90th": "10th to 90th: percentiles of windows of steps.",
    "tax ms": "tax: what data adds to a step.",
    "op ms": "op: both views' tokens from crops.",
    "first s": "first: the first step, with what is compiled for it.",
}

Table = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]


def terminal_table(bench: ThroughputBench) -> str:
    """Return sources, then a line for each model and compression, goals and notes."""
    lines = [f"{bench.environment['device']}, batches of {bench.batch}, {bench.pictures}"]
    if bench.sources:
        lines += ["", *_columns(*source_table(bench.sources))]
    if bench.peak:
        lines += ["", _peak(bench)]
    for model, rows in _models(bench.rows):
        lines += ["", model, *_columns(*rate_table(bench, rows))]
        lines += ["", *_columns(*time_table(bench, rows))]
    if bench.rows:
        lines += ["", *_legend(bench)]
    goals = [f"{goal.what}: {goal.verdict}. {goal.measured}".rstrip() for goal in bench.goals()]
    ending = [*goals, *bench.notes, *bench.doubts(), f"measured in {duration(bench.elapsed_s)}"]
    return "\n".join([*lines, "", *ending])


def _legend(bench: ThroughputBench) -> list[str]:
    """The columns whose names do not say it, and what was found to limit rows."""
    found = dict.fromkeys(limit for row in bench.rows if (limit := bench.limit(row)))
    tables = (rate_table(bench, bench.rows), time_table(bench, bench.rows))
    shown = {head[column] for head, rows in tables for column in _shown(head, rows)}
    meanings = " ".join(meaning for name, meaning in _COLUMNS.items() if name in shown)
    return [
        *textwrap.wrap(meanings, 100),
        *(f"limit {limit}: {MEANINGS[limit]}." for limit in found),
    ]


def page(bench: ThroughputBench, picture: str) -> str:
    """Return a result's page: hardware, command, goals, every figure; picture: the plot's name."""
    where = [f"- {name}: {value}" for name, value in bench.environment.items()]
    only = f", {bench.only} only" if bench.only else ""
    lines = [
        f"# Throughput ({bench.environment['device']}{only})",
        "",
        EXPLANATION,
        f"Batches of {bench.batch} pairs; {bench.pictures}. "
        f"The whole took {bench.elapsed_s:.0f} s.",
        "",
        *where,
    ]
    if bench.goals():
        goals = [(goal.what, goal.verdict, goal.measured) for goal in bench.goals()]
        lines += ["", *_markdown(("goal", "", "measured"), goals)]
    if notes := [*bench.notes, *bench.doubts()]:
        lines += ["", *(f"- {note}" for note in notes)]
    if bench.sources:
        lines += ["", "## Sources of images alone", "", *_markdown(*source_table(bench.sources))]
    if bench.copy_s is not None:
        copies = f"The batch's files reach the GPU in {1e3 * bench.copy_s:.2f} ms, one copy each."
        lines += ["", copies]
    if bench.peak:
        lines += ["", _peak(bench)]
    if bench.rows:
        lines += ["", f"![Speed-ups and rates]({picture})"]
    for model, rows in _models(bench.rows):
        lines += ["", f"## {model}", "", *_markdown(*rate_table(bench, rows))]
        lines += ["", *_markdown(*time_table(bench, rows))]
    return "\n".join(lines) + "\n"


def page_name(bench: ThroughputBench) -> str:
    """throughput_<card>_<yyyymm>.md; the one part before the card, where it is not all."""
    year, month, _ = str(bench.environment["started"]).split("-", 2)
    only = f"{bench.only}_" if bench.only else ""
    return f"throughput_{only}{card(str(bench.environment['device']))}_{year}{month}.md"


def source_table(sources: Sequence[SourceTime]) -> Table:
    head = ("source", "images/s", "ms a batch", "10th to 90th", "images a batch", "cores")
    rows = [
        (
            source.name,
            _rate(source.images_per_s),
            _ms(source.time),
            _spread(source.time),
            f"{source.images}",
            _number(source.cpu_cores, "{:.1f}"),
        )
        for source in sources
    ]
    return head, rows


def rate_table(bench: ThroughputBench, rows: Sequence[Row]) -> Table:
    """Return the table of rates and speed-ups."""
    head = ("p", "drop", "kept", "images/s", "tokens/s", "units/s", "counted", "realised")
    lines = [
        (
            f"{row.p}",
            f"{row.drop:g}",
            f"{row.keep}",
            _rate(row.images_per_s),
            _rate(row.tokens_per_s),
            _rate(row.units_per_s),
            _number(bench.counted(row), "{:.2f}"),
            _number(bench.realised(row), "{:.2f}"),
            _number(bench.realised_of_counted(row), "{:.3f}"),
            _number(bench.alone_of_counted(row), "{:.3f}"),
            _number(row.of_synthetic, "{:.3f}"),
            bench.limit(row) or "",
        )
        for row in rows
    ]
    more = ("realised/counted", "step/counted", "live/step", "limit")
    return head + more, lines


def time_table(bench: ThroughputBench, rows: Sequence[Row]) -> Table:
    """Return the table of milliseconds, operations and memory."""
    head = ("p", "drop", "step ms", "10th to 90th", "live ms", "10th to 90th", "tax ms", "op ms")
    more = ("launch ms", "first s", "TFLOP/s", "of peak", "memory GB", "cores")
    lines = [
        (
            f"{row.p}",
            f"{row.drop:g}",
            _ms(row.synthetic),
            _spread(row.synthetic),
            _ms(row.live),
            _spread(row.live),
            _number(row.tax_s, "{:.2f}", 1e3),
            _ms(row.op),
            _number(row.launch_s, "{:.2f}", 1e3),
            f"{row.first_s:.1f}",
            _tera(row.flops_per_s),
            _number(bench.of_peak(row), "{:.1%}"),
            _number(row.memory_bytes, "{:.1f}", 1e-9),
            _number(row.cpu_cores, "{:.1f}"),
        )
        for row in rows
    ]
    return head + more, lines


def _models(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return [(model, list(group)) for model, group in groupby(rows, key=lambda row: row.model)]


def _peak(bench: ThroughputBench) -> str:
    assert bench.peak is not None
    peak = bench.peak
    return (
        f"Matrix peak: {_tera(peak.flops_per_s)} TFLOP/s ({peak.dtype}, {peak.side} x "
        f"{peak.side} in {1e3 * peak.time.median_s:.3g} ms)."
    )


def _ms(timing: Timing | None) -> str:
    return f"{1e3 * timing.median_s:,.2f}" if timing else ""


def _spread(timing: Timing | None) -> str:
    return f"{1e3 * timing.low_s:,.2f} to {1e3 * timing.high_s:,.2f}" if timing else ""


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _tera(per_s: float) -> str:
    return f"{per_s / 1e12:,.0f}" if per_s >= 1e14 else f"{per_s / 1e12:.3g}"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(scale * value)


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _shown(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[int]:
    return [i for i in range(len(head)) if any(row[i] for row in rows)]


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align columns right, the first column left; leave out columns without a figure."""
    shown = _shown(head, rows)
    widths = {i: max(len(line[i]) for line in (head, *rows)) for i in shown}
    return [
        "  ".join(line[i].rjust(widths[i]) if i else line[i].ljust(widths[i]) for i in shown)
        for line in (head, *rows)
    ]
