"""What an image costs, in the paper's units: forward passes of one uncompressed 224 px view.

A backward pass counts as two forward passes and cost is linear in the patch tokens (paper, section
5, "training budget"), so an encoder that is trained costs 3 L / L_base and one that is only
evaluated L / L_base. Integers and floats only, no torch.
"""

from enum import StrEnum


class Convention(StrEnum):
    """How tokens are counted. The paper's text says TEXT197, its tables need PATCHES196.

    PATCHES196 counts patch tokens only, against the 196 of a 14 x 14 grid. TEXT197 counts the CLS
    token too, on both sides. Ratios between two costs differ by less than 2% down to L = 50.
    """

    PATCHES196 = "patches196"
    TEXT197 = "text197"

    def share(self, patches: int) -> float:
        """Cost of one forward pass over `patches` patch tokens."""
        return patches / 196 if self is Convention.PATCHES196 else (patches + 1) / 197


def simclr_cost(l_q: int, l_k: int, convention: Convention = Convention.PATCHES196) -> float:
    """3 (L_q + L_k) / L_base: both views are trained through the one encoder."""
    return 3 * (convention.share(l_q) + convention.share(l_k))


def moco_cost(l_q: int, l_k: int, convention: Convention = Convention.PATCHES196) -> float:
    """(3 L_q + L_k) / L_base: the key encoder is not trained."""
    return 3 * convention.share(l_q) + convention.share(l_k)


def dino_cost(
    l_q: int,
    l_k: int,
    n_local: int,
    l_local: int,
    convention: Convention = Convention.PATCHES196,
    *,
    n_global: int = 1,
) -> float:
    """(3 G L_q + 3 n_local L_local + G L_k) / L_base: the query network sees small crops too.

    G = n_global large crops are query, and as many key: 1 in the paper's formula, 2 in DINO itself.
    """
    return n_global * moco_cost(l_q, l_k, convention) + 3 * n_local * convention.share(l_local)
