"""What each method does with a stage of the schedule, and what that costs. No torch.

A stage's compression is that of the query. The patch side is the same for query and key; tokens are
dropped from both views where both are trained (SimCLR), from the query only where the key encoder
is an average (MoCo-v3, DINO), so that its keys are those of whole images. DINO's small crops are
never compressed.
"""

from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.cost import Convention, dino_cost, moco_cost, simclr_cost

ALGORITHMS = ("simclr", "moco", "dino")
MODES = ("paper", "official")
"""Of DINO: one large crop is query and one key, or both are both."""


def compressions(
    algo: str,
    compression: Compression,
    *,
    symmetric: bool = False,
    mode: str = "paper",
    n_local: int = 0,
) -> tuple[Compression, ...]:
    """What a step takes, in the order of the objective's arguments.

    SimCLR and MoCo: query, key, of two views. Symmetric MoCo: query and query, key and key, of two
    views each. DINO: query, key and n_local small crops; official DINO: query and query, the small
    crops, and the two large ones again as keys.
    """
    if algo == "simclr":
        return compression, compression
    whole = Compression(compression.p, 0.0)
    if algo == "dino":
        small = (UNCOMPRESSED,) * n_local
        if mode == "official":
            return compression, compression, *small, whole, whole
        return compression, whole, *small
    return (compression,) * 2 + (whole,) * 2 if symmetric else (compression, whole)


def sample_cost(
    algo: str,
    compression: Compression,
    size: int,
    convention: Convention = Convention.PATCHES196,
    *,
    symmetric: bool = False,
    mode: str = "paper",
    n_local: int = 0,
    local_size: int = 96,
) -> float:
    """Units an image costs whose views are crops of `size` px, DINO's small ones of local_size."""
    l_q = compression.keep(size)
    if algo == "simclr":
        return simclr_cost(l_q, l_q, convention)
    l_k = compression.grid(size) ** 2
    if algo == "dino":
        l_local, n_global = UNCOMPRESSED.keep(local_size), 1 + (mode == "official")
        return dino_cost(l_q, l_k, n_local, l_local, convention, n_global=n_global)
    return moco_cost(l_q, l_k, convention) * (2 if symmetric else 1)
