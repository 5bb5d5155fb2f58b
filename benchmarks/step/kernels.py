"""Purposes of a training step's kernels, derived from their names and from marks between them.

A trace is a list of kernels: those of a GPU, or on a CPU torch's outermost operators. Three marks
stand in each step: where it begins, where the encoder's features are there, and where their
gradients are. Between the latter two lie heads and loss, whose kernels are named like all others.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal[
    "matrix products",
    "attention",
    "layer norm",
    "activation",
    "other",
    "heads and loss",
    "optimiser",
    "EMA",
    "copies",
    "communication",
    "gaps",
]
PARTS: tuple[Part, ...] = get_args(Part)
MARK, MARKS_A_STEP = "step_mark", 3

# Inductor names a kernel after the operators it fuses, and what only moves data for an attention or
# a product is named after that too.
_FUSED: tuple[tuple[Part, str], ...] = (
    ("layer norm", "layer_norm"),
    ("activation", "gelu|silu"),
    ("attention", "softmax"),
)
# The first that is found counts: attention is written with cutlass too. On a CPU the name of an
# optimiser's operator begins with the optimiser's.
_NAMED: tuple[tuple[Part, str], ...] = (
    ("communication", "nccl|all_?reduce|all_?gather|reduce_?scatter"),
    ("copies", "^memcpy|^memset"),
    ("optimiser", "adam"),
    ("EMA", "lerp"),
    ("optimiser", "multi_tensor_apply|_foreach"),
    ("attention", "flash|fmha|sdpa|scaled_dot_product|compute_dot_do_o|attention"),
    (
        "matrix products",
        "nvjet|gemm|gemv|cutlass|split_?k|xmma|triton_tem_fused|"
        r"aten::(linear|matmul|mm|addmm|bmm|baddbmm)\b|mkldnn_linear",
    ),
    ("layer norm", "layer_?norm|add_norm|gammabeta"),
    ("activation", "gelu|silu"),
)


@dataclass(frozen=True)
class Kernel:
    """When it ran, in seconds of any one clock."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Work:
    """A kernel within a step. own_s: without what it shares with one that began earlier."""

    name: str
    part: Part
    own_s: float


@dataclass(frozen=True)
class TracedStep:
    """A step's kernels, and the time from its beginning to the next one's. What is in no kernel is
    idle, so that all adds up."""

    works: tuple[Work, ...]
    seconds: float

    @property
    def busy_s(self) -> float:
        return sum(work.own_s for work in self.works)

    @property
    def idle_s(self) -> float:
        return self.seconds - self.busy_s


def part_of(name: str) -> Part:
    """Return the part of the step for a kernel outside of heads and loss."""
    fused = re.match("triton_(poi|red|per)_fused", name)
    for part, pattern in _FUSED if fused else _NAMED:
        if re.search(pattern, name, re.IGNORECASE):
            return part
    return "other"


def traced_steps(kernels: Iterable[Kernel]) -> list[TracedStep]:
    """Return the steps of a trace that ends in a further step's mark. Leave out the first step,
    in which the profiler itself begins.

    Raises RuntimeError if the trace lacks marks: then no kernel's place is known.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.start_s)
    marks = [i for i, kernel in enumerate(ordered) if kernel.name == MARK]
    if len(marks) % MARKS_A_STEP != 1 or len(marks) <= 2 * MARKS_A_STEP:
        raise RuntimeError(f"the profiler saw {len(marks)} marks, which are no whole steps")
    return [
        _step(ordered, marks[first : first + MARKS_A_STEP + 1])
        for first in range(MARKS_A_STEP, len(marks) - 1, MARKS_A_STEP)
    ]


def _step(ordered: Sequence[Kernel], marks: Sequence[int]) -> TracedStep:
    begin, features, gradients, end = marks
    busy_until_s = begin_s = ordered[begin].end_s
    works = []
    for i in range(begin + 1, end):
        kernel = ordered[i]
        own_s = max(0.0, kernel.end_s - max(kernel.start_s, busy_until_s))
        busy_until_s = max(busy_until_s, kernel.end_s)
        if kernel.name == MARK:
            continue
        part = part_of(kernel.name)
        if features < i < gradients and part != "communication":
            part = "heads and loss"
        works.append(Work(kernel.name, part, own_s))
    return TracedStep(tuple(works), max(busy_until_s, ordered[end].start_s) - begin_s)
