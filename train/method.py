"""What each method does with a stage of the schedule, and what that costs. No torch.

A stage's compression is that of the query. The patch side is the same for query and key; tokens are
dropped from both views where both are trained (SimCLR), from the query only where the key encoder
is an average (MoCo-v3), so that its keys are those of whole images.
"""

from accelssl.pipeline.compress.compression import Compression
from accelssl.train.cost import Convention, moco_cost, simclr_cost

ALGORITHMS = ("simclr", "moco")


def compressions(
    algo: str, compression: Compression, *, symmetric: bool = False
) -> tuple[Compression, ...]:
    """What a step takes, in the order of the objective's arguments.

    SimCLR and MoCo: query, key, of two views. Symmetric MoCo: query and query, key and key, of two
    views each.
    """
    if algo == "simclr":
        return compression, compression
    whole = Compression(compression.p, 0.0)
    return (compression,) * 2 + (whole,) * 2 if symmetric else (compression, whole)


def sample_cost(
    algo: str,
    compression: Compression,
    size: int,
    convention: Convention = Convention.PATCHES196,
    *,
    symmetric: bool = False,
) -> float:
    """Units an image costs whose views are crops of `size` px."""
    l_q = compression.keep(size)
    if algo == "simclr":
        return simclr_cost(l_q, l_q, convention)
    l_k = compression.grid(size) ** 2
    return moco_cost(l_q, l_k, convention) * (2 if symmetric else 1)
