"""Where a step's time goes, as text: tables for the terminal, a page of Markdown."""

from collections.abc import Iterable

from accelssl.benchmarks.kernel.page import card
from accelssl.benchmarks.step.result import StepBench, StepRow
from accelssl.formats import duration

EXPLANATION = """\
Training steps of SimCLR on fixed batches of tokens: forward, backward and optimiser. On a GPU the
step is compiled and replayed from a CUDA graph, as in training. Every kernel belongs to one part:

- **matrix products**: the encoder's. **attention**: scores, softmax and sums of values, with what
  they need backward. **layer norm**: with the residual sums and casts fused with it.
  **activation**: GELU, with the sums of bias gradients fused with it.
- **heads and loss**: all that runs between the encoder's features and their gradients, products
  too. Two marks in the step, kernels that do nothing, say where that is.
- **other**: casts, positions, transposes and all that is named after nothing else. **copies**: of
  the batch to where a graph reads it, and what clears memory, above all counters by which matrix
  products hand out their tiles. **EMA**: the momentum encoder, which SimCLR has none of.
- **gaps**: when no kernel ran, from a step's beginning to the next one's.

Outside of heads and loss the name of a kernel tells its part; below each table stand the longest.
On a CPU the kernels are torch's outermost operators, each with all that it calls.

**floor** is what the part takes at the measured rates: matrix products at the peak of square ones,
the others at the bandwidth of large copies for the bytes that must move between the products
(benchmarks/step/floor.py has the formulas). These are rates, not bounds: products of other shapes
may be faster than square ones. **times** is the part's time by it; the step's floor is the sum of
those there are. **Of the matrix peak**: the floor of the encoder's products by the step's time,
which leaves out attention's and the head's (the page of throughput counts them). Times are means of
the profiled steps; the profiler itself makes gaps longer, so the step's time without it stands
above each table.
"""
_LEGEND = """\
In brackets: the 10th and the 90th percentile. share: of the profiled step. floor: what the part
would take at the peak of products or of copies, of the step the sum of those. times: its time by
that. gaps: when nothing ran."""
_SHOWN = 12
_HEAD = ("part", "ms", "share", "launches", "floor ms", "times")


def terminal_table(bench: StepBench) -> str:
    """Return a table for each model and compression, then notes."""
    lines = [f"{_machine(bench)}: {_rates(bench)}"]
    for row in bench.rows:
        lines += ["", f"{row.name}, {row.pairs} pairs: {_step(bench, row)}", _columns(_HEAD)]
        lines += [_columns(line) for line in part_lines(row)]
    lines += ["", _LEGEND, "", *bench.notes, f"measured in {duration(bench.elapsed_s)}"]
    return "\n".join(lines)


def page(bench: StepBench) -> str:
    """Return the page of a result: hardware, command, every table."""
    lines = [
        f"# Where a training step's time goes ({bench.environment['device']})",
        "",
        EXPLANATION,
        f"{_rates(bench)} Each table is of {bench.steps} profiled steps. "
        f"The whole took {bench.elapsed_s:.0f} s.",
        "",
        *(f"- {name}: {value}" for name, value in bench.environment.items()),
    ]
    if bench.notes:
        lines += ["", *(f"- {note}" for note in bench.notes)]
    for row in bench.rows:
        lines += ["", f"## {row.name}", "", f"{row.pairs} pairs: {_step(bench, row)}.", ""]
        lines += _markdown(_HEAD, part_lines(row))
        lines += ["", *_markdown(("kernel", "part", "ms", "launches"), _longest(row))]
    return "\n".join(lines) + "\n"


def page_name(bench: StepBench) -> str:
    """Return step_<card>_<yyyymm>.md."""
    year, month, _ = str(bench.environment["started"]).split("-", 2)
    return f"step_{card(str(bench.environment['device']))}_{year}{month}.md"


def part_lines(row: StepRow) -> list[tuple[str, ...]]:
    """Return a line for every part, and a line for the whole step."""
    parts = [(p.part, p.seconds, p.launches, p.floor_s) for p in row.parts]
    return [
        (
            name,
            _ms(seconds),
            f"{seconds / row.profiled_s:.1%}",
            f"{launches}",
            _ms(floor_s) if floor_s else "",
            f"{seconds / floor_s:.2f}" if floor_s else "",
        )
        for name, seconds, launches, floor_s in [
            *parts,
            ("step", row.profiled_s, row.launches, row.floor_s),
        ]
    ]


def _longest(row: StepRow) -> list[tuple[str, ...]]:
    return [
        (f"`{_short(kernel.name)}`", kernel.part, _ms(kernel.seconds), f"{kernel.launches}")
        for kernel in row.longest[:_SHOWN]
    ]


def _short(name: str) -> str:
    """Without what would end a cell, and most of a C++ template."""
    name = name.removeprefix("void ").replace("|", "/")
    return name if len(name) <= 100 else name[:97] + "..."


def _machine(bench: StepBench) -> str:
    """A processor by its name, which "cpu" is none of."""
    device: str = bench.environment["device"]
    return f"cpu ({bench.environment['cpu']})" if device == "cpu" else device


def _rates(bench: StepBench) -> str:
    return (
        f"Matrix products reach {bench.peak.flops_per_s / 1e12:,.3g} TFLOP/s ({bench.peak.dtype}), "
        f"copies {bench.copy_bytes_per_s / 1e9:,.3g} GB/s, read and written bytes together."
    )


def _step(bench: StepBench, row: StepRow) -> str:
    step, of_counted = row.step, bench.alone_of_counted(row)
    spread = f"{_ms(step.low_s)} to {_ms(step.high_s)}"
    said = f"{_ms(step.median_s)} ms a step ({spread}), {_ms(row.profiled_s)} profiled"
    said += f", {bench.of_peak(row):.1%} of the matrix peak"
    return said if of_counted is None else f"{said}, {of_counted:.3f} of the counted speed-up"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}" if seconds < 1e-3 else f"{1e3 * seconds:,.2f}"


def _columns(cells: tuple[str, ...]) -> str:
    first, *others = cells
    return (f"{first:<16}" + "".join(f"{cell:>11}" for cell in others)).rstrip()


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
