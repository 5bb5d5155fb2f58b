"""The order of an epoch: a global permutation that every rank knows and none has to share."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.pipeline.draws.philox import Purpose, draw


@dataclass(frozen=True)
class Position:
    """The next batch nobody has seen: batch number `batch` of epoch `epoch`, both from 0."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Plan:
    """One batch of one rank: which samples, in which epoch, and the position that follows it."""

    samples_N: NDArray[np.int64]
    epoch: int
    after: Position


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The samples 0..samples-1 in the order of this epoch: a permutation drawn by (seed, epoch)."""
    words = draw(seed, epoch, np.arange(samples), 0, Purpose.ORDER, 1)[:, 0]
    return np.argsort(words, kind="stable")


def batches_per_epoch(samples: int, batch: int, world: int) -> int:
    """Full batches every rank gets in an epoch. UserError when there is not even one."""
    full = samples // (batch * world)
    if full < 1:
        on_each = f" on each of {world} ranks" if world > 1 else ""
        raise UserError(
            f"{samples} training images do not fill one batch of {batch}{on_each}.",
            f"Use --batch {samples // world * world} or less, or more images."
            if samples >= 2 * world
            else "Use more images.",
        )
    return full


def plans(
    samples: int, batch: int, seed: int, rank: int, world: int, start: Position
) -> Iterator[Plan]:
    """This rank's batches from `start` on, without end, epoch after epoch.

    Within an epoch no two ranks and no two batches share a sample. The last samples of an epoch's
    order that do not fill a batch on every rank are left out of it: others in each epoch.
    """
    full = batches_per_epoch(samples, batch, world)
    epoch, k = start.epoch, start.batch
    while True:
        order = epoch_order(samples, seed, epoch)[: full * batch * world]
        mine_KN = order.reshape(full, world, batch)[:, rank]
        while k < full:
            after = Position(epoch, k + 1) if k + 1 < full else Position(epoch + 1, 0)
            yield Plan(mine_KN[k], epoch, after)
            k += 1
        epoch, k = epoch + 1, 0


def sequential_plans(samples: int, batch: int) -> Iterator[Plan]:
    """Every sample once, in order, the last batch as it comes: for evaluation."""
    for first in range(0, samples, batch):
        last = min(first + batch, samples)
        yield Plan(np.arange(first, last), 0, Position(0, last // batch))
