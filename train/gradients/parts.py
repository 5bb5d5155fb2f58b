"""Several processes, one analysis: which groups of sub-batches each makes, and their sums."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from accelssl.train.ranks.distributed import ALONE, Ranks

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Part:
    """This rank's part, whose tensors meet on `device`."""

    ranks: Ranks = ALONE
    device: torch.device = CPU

    def groups(self, count: int) -> range:
        """Of `count` groups: consecutive ones, and about as many as any other rank's."""
        rank, world = self.ranks.rank, self.ranks.world
        return range(count * rank // world, count * (rank + 1) // world)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Let each be the sum over ranks, on all of them. They wait for the slowest."""
        if self.ranks.world == 1:
            return
        self.ranks.wait()  # which has more patience than a collective of a step
        for tensor in tensors:
            there = tensor.to(self.device)
            dist.all_reduce(there)
            tensor.copy_(there)


WHOLE = Part()
