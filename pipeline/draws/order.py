"""Order of the samples in an epoch: a permutation that every rank computes alike."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.pipeline.draws.philox import Purpose, draw


@dataclass(frozen=True)
class Position:
    """Position in the data: batch number `batch` of epoch number `epoch`, both from 0."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Plan:
    """Plan of one batch of one rank: its samples, its epoch and the position after the batch."""

    samples_N: NDArray[np.int64]
    epoch: int
    after: Position


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the samples 0..samples-1 in a random order that depends on (seed, epoch) alone."""
    words = draw(seed, epoch, np.arange(samples), 0, Purpose.ORDER, 1)[:, 0]
    return np.argsort(words, kind="stable")


def batches_per_epoch(samples: int, batch: int, world: int) -> int:
    """Return the full batches per rank and epoch. Raise UserError if there is none."""
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
    """Yield this rank's batches from `start` on, epoch after epoch, without end.

    Within an epoch no two ranks and no two batches share a sample. An epoch omits the last samples
    of its order if they do not fill a batch on every rank; other epochs omit other samples.
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
    """Yield every sample once, in order, for evaluation. The last batch may be smaller."""
    for first in range(0, samples, batch):
        last = min(first + batch, samples)
        yield Plan(np.arange(first, last), 0, Position(0, last // batch))
