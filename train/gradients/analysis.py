"""Gradients of many compressions on the same images and crops, summed in bounded memory.

A sub-batch is decoded and cropped once. Its gradient is computed uncompressed and in each cell. For
each cell only the sum of the differences d (D float32 values) and a few scalars are kept; for the
baseline only its sum. Memory is 4 D (cells + 4) bytes. A grid that does not fit is computed in
blocks of cells, each with a baseline of its own. At the end of each group of sub-batches the sums
are sketched: a group's part is the difference of two sketches. Processes may share the groups;
their sums are then added.

Shapes: D parameters, J groups of sub-batches, M values of a sketch.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Loader
from accelssl.train.gradients.estimator import GROUPS, Floats, Norms, Sums
from accelssl.train.gradients.gradient import Gradient
from accelssl.train.ranks.distributed import ALONE, Ranks

Views = tuple[Compression, ...]
"""Compressions of a batch's views, in the order of the objective's arguments."""
_SHARE_OF_MEMORY = 0.5
_OTHERS = 4  # the baseline's sum, two gradients, and one being sketched
CPU = torch.device("cpu")


@dataclass(frozen=True)
class RankPart:
    """The groups of sub-batches that one rank computes; `device` holds tensors for all_reduce."""

    ranks: Ranks = ALONE
    device: torch.device = CPU

    def groups(self, count: int) -> range:
        """Return consecutive ones of `count` groups, about as many as on every other rank."""
        rank, world = self.ranks.rank, self.ranks.world
        return range(count * rank // world, count * (rank + 1) // world)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, on all ranks."""
        if self.ranks.world == 1:
            return
        self.ranks.wait()  # with a longer timeout than all_reduce
        for tensor in tensors:
            there = tensor.to(self.device)
            dist.all_reduce(there)
            tensor.copy_(there)


WHOLE = RankPart()


@dataclass(frozen=True)
class AnalysisPlan:
    """The number of sub-batches to analyse, after bank_batches with images for further
    negatives."""

    subbatches: int
    bank_batches: int = 0

    @property
    def ends(self) -> list[int]:
        """Return the number of sub-batches at the end of each group; group sizes differ by one
        at most."""
        groups = min(GROUPS, self.subbatches)
        return [self.subbatches * j // groups for j in range(1, groups + 1)]


SKETCH = 65_521
"""A prime, so that folded places do not align with the shapes of weights."""


class Sketch:
    """A random projection of vectors of D values to at most `values`, which keeps inner products.

    x_D times fixed random signs, cut into rows of `values` and summed (a structured count sketch:
    Charikar et al., ICALP 2002). <Rx, Ry> has the expectation <x, y> and a deviation of about ||x||
    ||y|| / sqrt(values); it is exact if D is at most `values`. The sketch of a sum is the sum of
    sketches.
    """

    def __init__(self, parameters: int, device: torch.device, values: int = SKETCH) -> None:
        self.values = min(values, parameters)
        generator = torch.Generator().manual_seed(0)
        signs_D = torch.randint(0, 2, (parameters,), generator=generator, dtype=torch.int8)
        self._signs_D = signs_D.mul_(2).sub_(1).to(device)

    def __call__(self, x_D: Tensor) -> Tensor:
        """Return sketch_M, float64 on the CPU, of a float32 vector."""
        signed_D = x_D * self._signs_D
        rest = len(signed_D) % self.values
        whole = len(signed_D) - rest
        sketch_M = signed_D[:whole].view(-1, self.values).sum(0)
        sketch_M[:rest] += signed_D[whole:]
        return sketch_M.double().cpu()


def cells_that_fit(gradient: Gradient) -> int:
    """Return the number of sums that fit into half of the free memory, at least 1."""
    if gradient.device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(gradient.device)
    else:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, int(free_bytes * _SHARE_OF_MEMORY / (4 * gradient.size)) - _OTHERS)


def sums_of(
    gradient: Gradient,
    loader: Loader,
    baseline: Views,
    cells: Sequence[Views],
    plan: AnalysisPlan,
    advance: Callable[[], None] = lambda: None,
    part: RankPart = WHOLE,
) -> list[Sums]:
    """Return the sums of each cell over the loader's next batches; call `advance` for every
    gradient.

    part: the groups that this process computes. The loader must begin with their sub-batches. Raise
    UserError if a gradient is not finite.
    """
    banks = _banks(gradient, loader, [baseline, *cells], plan.bank_batches)
    of_baseline = _Series(gradient, len(plan.ends))
    differences = [_Series(gradient, len(plan.ends)) for _ in cells]
    squares = torch.zeros(len(cells), len(plan.ends), dtype=torch.float64, device=gradient.device)
    all_series = (of_baseline, *differences)
    sketch, bounds = Sketch(gradient.size, gradient.device), list(pairwise([0, *plan.ends]))
    for group in part.groups(len(plan.ends)):
        for _ in range(*bounds[group]):
            batches = loader.next_in_turn([baseline, *cells])
            whole_D = gradient(next(batches).views, banks[0])
            of_baseline.add(whole_D, group)
            for place, (batch, bank) in enumerate(zip(batches, banks[1:], strict=True)):
                # Do not compute the baseline twice: its difference is exactly 0.
                is_baseline = cells[place] == baseline
                found_D = whole_D.clone() if is_baseline else gradient(batch.views, bank)
                squares[place, group] += _square(found_D)
                differences[place].add(torch.sub(whole_D, found_D, out=found_D), group)
                advance()
            _wait_for(gradient.device)
        for series in all_series:
            series.close_group(sketch, group)
    part.add_up([squares, *(tensor for series in all_series for tensor in series.tensors)])
    return [
        _sums(of_baseline, difference, squares_J.cpu().numpy(), plan)
        for difference, squares_J in zip(differences, squares, strict=True)
    ]


def _banks(
    gradient: Gradient, loader: Loader, compressions: Sequence[Views], batches: int
) -> list[tuple[Tensor, ...]]:
    """Return for each of `compressions` the negatives of the same images, compressed as in
    training."""
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in compressions]
    for _ in range(batches):
        for found, batch in zip(parts, loader.next_in_turn(compressions), strict=True):
            found.append(gradient.negatives(batch.views))
    return [tuple(map(torch.cat, zip(*found, strict=True))) for found in parts]


class _Series:
    """A running sum of vectors, with the sum of squares and a sketch of each group."""

    def __init__(self, gradient: Gradient, groups: int) -> None:
        self.sum_D = torch.zeros(gradient.size, device=gradient.device)
        self.squares_J = torch.zeros(groups, dtype=torch.float64, device=gradient.device)
        values = min(SKETCH, gradient.size)
        self.sketches_JM = torch.zeros(groups, values, dtype=torch.float64)
        self._until_M = torch.zeros(values, dtype=torch.float64)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tensors to add up over processes."""
        return self.sum_D, self.squares_J, self.sketches_JM

    def add(self, x_D: Tensor, group: int) -> None:
        self.sum_D += x_D
        self.squares_J[group] += _square(x_D)

    def close_group(self, sketch: Sketch, group: int) -> None:
        until_M = sketch(self.sum_D)
        self.sketches_JM[group] = until_M - self._until_M
        self._until_M = until_M

    def norms(self) -> Norms:
        of_sum = float(_square(self.sum_D))
        return Norms(self.squares_J.cpu().numpy(), of_sum, self.sketches_JM.numpy())


def _wait_for(device: torch.device) -> None:
    """Wait for the GPU. Batches prepared far ahead would only fill its memory."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _square(x_D: Tensor) -> Tensor:
    """Return ||x||^2 in float64: differences of such sums are small."""
    norm: Tensor = torch.linalg.vector_norm(x_D, dtype=torch.float64)
    return norm.square()


def _sums(baseline: _Series, difference: _Series, squares_J: Floats, plan: AnalysisPlan) -> Sums:
    whole, changed = baseline.norms(), difference.norms()
    of_sum = float(_square(baseline.sum_D - difference.sum_D))
    compressed = Norms(squares_J, of_sum, whole.sketches_JM - changed.sketches_JM)
    if not np.isfinite([whole.of_sum, changed.of_sum, *squares_J]).all():
        raise UserError(
            "A gradient is not finite.", "Look at the run's losses; try --precision fp32."
        )
    return Sums(np.diff([0, *plan.ends]), whole, compressed, changed)
