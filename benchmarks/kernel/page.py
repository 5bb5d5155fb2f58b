"""The kernel benchmark's result as text: a compact table for the terminal, a page of Markdown."""

import re
from collections.abc import Iterable
from itertools import groupby

from accelssl.benchmarks.kernel.result import (
    COMPILED,
    DALI,
    EAGER,
    MASKED,
    KernelBench,
    KernelTime,
    PeerTime,
)
from accelssl.formats import duration

EXPLANATION = """\
Time of the op for a batch of 240 px crops (uint8 in, tokens in bfloat16 out): medians, with the
10th and the 90th percentile. On a GPU the calls, each on inputs of its own, are replayed from one
CUDA graph, so that neither Python nor what the L2 cache kept of the call before counts.

- **moves**: flips alone. **no blur**: SimCLR's view without its blur (jitter in 80% of the crops,
  gray in 20%, flips). **blur**: SimCLR's view, with blur in half of the crops.
- **MB**: what any implementation moves, each byte of input once: all of a jittered crop (its mean
  gray needs it), else the kept patches, with a halo of 8 px if blurred; parameters, indices and
  tokens besides.
- **of copy**: MB by time, as a fraction of the bandwidth of a large copy. **of same copy**: the
  time of a copy that moves as many bytes, as a fraction of the op's. Small copies are slower. Of
  two ways to copy, a memcpy and a kernel, the faster one counts; bytes read and written both do.
- **gray**, **tokens**: the kernels that sum the mean gray, and those that make tokens, as the
  profiler saw them, launched one by one.
"""
WAYS = f"""\
- **{EAGER}**: the definition, on the GPU. Timed from Python, which it keeps waiting.
- **{COMPILED}**: the same function without control flow that depends on values, told beforehand how
  many samples are blurred; compiled, checked against the definition, replayed from a CUDA graph.
- **{MASKED}**: that function, not compiled.
- **{DALI}**: its own color_twist, gaussian_blur and crop_mirror_normalize, fed with the same crops
  and working ahead; then patches, gather and shrink in torch. It does less: one order of the
  jitter, contrast about a fixed gray, hue in YIQ.
"""


def terminal_table(bench: KernelBench) -> str:
    """Return a line for each batch, p and drop: each kind's time and fraction of a copy's time."""
    lines = [
        f"{bench.environment['device']}: copies move {bench.copy_bytes_per_s / 1e9:,.0f} GB/s; "
        "microseconds (bytes that must move, as a fraction of that bandwidth)",
    ]
    for implementation, times in _groups(bench.times):
        kinds = list(dict.fromkeys(time.kind for time in times))
        lines += ["", f"{implementation:<8}{'N':>5}{'p':>4}{'drop':>6}" + _cells(kinds)]
        for (crops, p, drop), row in groupby(times, key=lambda t: (t.crops, t.p, t.drop)):
            cells = _cells(f"{_us(t.time.median_s)} ({bench.of_copy(t):.0%})" for t in row)
            lines.append(f"{'':<8}{crops:>5}{p:>4}{drop:>6g}" + cells)
    lines += ["", *(f"{_peer_name(p)}: {p.ratio:.3g} times as long" for p in bench.peers)]
    lines += [f"{goal.what}: {goal.verdict}. {goal.measured}".rstrip() for goal in bench.goals()]
    return "\n".join([*lines, *bench.notes, f"measured in {duration(bench.elapsed_s)}"])


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"{text:>16}" for text in texts)


def _peer_name(peer: PeerTime) -> str:
    return f"{peer.peer}, N = {peer.crops}, p = {peer.p}, drop {peer.drop:g}, {peer.kind}"


def page(bench: KernelBench) -> str:
    """Return a result's page: hardware, command, goals, other implementations, every figure."""
    where = [f"- {name}: {value}" for name, value in bench.environment.items()]
    lines = [
        f"# The fused op ({bench.environment['device']})",
        "",
        EXPLANATION,
        f"A large copy moves {bench.copy_bytes_per_s / 1e9:,.0f} GB/s, read and written bytes "
        f"together. The whole took {bench.elapsed_s:.0f} s.",
        "",
        *where,
    ]
    if bench.goals():
        goals = [(goal.what, goal.verdict, goal.measured) for goal in bench.goals()]
        lines += ["", *_table(("goal", "", "measured"), goals)]
    if bench.peers:
        lines += ["", "## Other ways to the tokens", "", WAYS, *_peer_table(bench)]
    if bench.notes:
        lines += ["", *(f"- {note}" for note in bench.notes)]
    for implementation, times in _groups(bench.times):
        lines += ["", f"## {implementation}", "", *_time_table(bench, times)]
    return "\n".join(lines) + "\n"


def _groups(times: Iterable[KernelTime]) -> list[tuple[str, list[KernelTime]]]:
    """Group by implementation, in order; within each, sort by batch, p and drop."""
    names = list(dict.fromkeys(time.implementation for time in times))
    groups = [(name, [t for t in times if t.implementation == name]) for name in names]
    return [(name, sorted(g, key=lambda t: (t.crops, t.p, t.drop))) for name, g in groups]


def _time_table(bench: KernelBench, times: list[KernelTime]) -> list[str]:
    head = ("N", "p", "drop", "kind", "us", "10th to 90th", "gray", "tokens", "MB")
    rows = [
        (
            f"{time.crops}",
            f"{time.p}",
            f"{time.drop:g}",
            time.kind,
            _us(time.time.median_s),
            f"{_us(time.time.low_s)} to {_us(time.time.high_s)}",
            "" if time.gray_s is None else _us(time.gray_s),
            "" if time.tokens_s is None else _us(time.tokens_s),
            f"{time.moved_bytes / 1e6:.1f}",
            f"{bench.of_copy(time):.0%}",
            f"{time.of_same_copy:.0%}",
        )
        for time in times
    ]
    return _table((*head, "of copy", "of same copy"), rows)


def _peer_table(bench: KernelBench) -> list[str]:
    rows = [
        (
            peer.peer,
            f"{peer.crops}",
            f"{peer.p}",
            f"{peer.drop:g}",
            peer.kind,
            _us(peer.time.median_s),
            f"{_us(peer.time.low_s)} to {_us(peer.time.high_s)}",
            f"{peer.ratio:.3g}",
        )
        for peer in bench.peers
    ]
    return _table(("", "N", "p", "drop", "kind", "us", "10th to 90th", "times the op's"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-4 else f"{seconds * 1e6:,.0f}"


def page_name(bench: KernelBench) -> str:
    """Return kernel_<card>_<yyyymm>.md.

    >>> card("NVIDIA H100 80GB HBM3"), card("NVIDIA GeForce RTX 4090"), card("cpu")
    ('h100', 'rtx4090', 'cpu')
    """
    year, month, _ = str(bench.environment["started"]).split("-", 2)
    return f"kernel_{card(str(bench.environment['device']))}_{year}{month}.md"


def card(device: str) -> str:
    """Return a device's name without maker, memory and socket, in small letters and digits."""
    words = re.split(r"[^a-z0-9]+", device.lower())
    beside = re.compile(r"nvidia|geforce|tesla|\d+gb|hbm\w*|pcie|sxm\d*|nvl")
    return "".join(word for word in words if not beside.fullmatch(word)) or "gpu"
