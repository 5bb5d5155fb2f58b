"""Rows of all ranks for losses and batch norms over the global batch.

Every rank holds the same number of rows, because the loader gives every rank equally many. The
gradient convention is that of DistributedDataParallel, which averages over ranks: each rank's loss
is the mean over its own rows. The backward pass sums the gradients of every rank's loss by a row.
So the average of the parameters' gradients is the gradient of the global mean. The module uses
only collectives on tensors of fixed shape: nothing waits for the device, so a CUDA graph can hold
the collectives.

Shapes: N rows on this rank, M = N x ranks rows in all, any dimensions (...) after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch uses the second name until 2.13; newer releases warn about the second name.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

_is_alone = False


def world_size() -> int:
    """Return the number of ranks; 1 without a process group or inside `alone()`."""
    if _is_alone or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


@contextmanager
def alone() -> Iterator[None]:
    """Make this rank compute as a single process inside the block: gather nothing."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def rank() -> int:
    """Return the number of this rank, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(rows: Tensor) -> Tensor:
    """Return rows_M... of all ranks in rank order; alone, return rows_N... unchanged.

    The backward pass gives every rank the sum over ranks of the gradients of its own rows.
    """
    if world_size() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


def gather_detached(rows: Tensor) -> Tensor:
    """Return rows_M... of all ranks without gradient: constants to every rank's loss."""
    return rows.detach() if world_size() == 1 else _gathered(rows.detach())


def _gathered(rows: Tensor) -> Tensor:
    gathered = rows.new_empty((world_size() * len(rows), *rows.shape[1:]))
    _all_gather(gathered, rows.contiguous())
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return _gathered(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (of_all,) = gradients
        mine = of_all.new_empty((len(of_all) // world_size(), *of_all.shape[1:]))
        _reduce_scatter(mine, of_all.contiguous())
        return mine
