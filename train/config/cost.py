"""Cost of an image in the paper's units: forward passes of one uncompressed 224 px view.

A backward pass counts as two forward passes, and the cost is linear in the number of patch tokens L
(paper, section 5, "training budget"). A trained encoder therefore costs 3 L / L_base, and an
encoder without training L / L_base. Integers and floats only, no torch.
"""

from enum import StrEnum


class Convention(StrEnum):
    """Convention for counting tokens. The paper's text states TEXT197; its tables need PATCHES196.

    PATCHES196 counts patch tokens only, relative to the 196 of a 14 x 14 grid. TEXT197 also counts
    the CLS token, in the view and in the reference. Down to L = 50, the ratio of two costs differs
    by less than 2% between the conventions.
    """

    PATCHES196 = "patches196"
    TEXT197 = "text197"

    def share(self, patches: int) -> float:
        """Return the cost of one forward pass over `patches` patch tokens."""
        return patches / 196 if self is Convention.PATCHES196 else (patches + 1) / 197


def simclr_cost(l_q: int, l_k: int, convention: Convention = Convention.PATCHES196) -> float:
    """Return 3 (L_q + L_k) / L_base. One encoder is trained on both views."""
    return 3 * (convention.share(l_q) + convention.share(l_k))


def moco_cost(l_q: int, l_k: int, convention: Convention = Convention.PATCHES196) -> float:
    """Return (3 L_q + L_k) / L_base. The key encoder is not trained."""
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
    """Return (3 G L_q + 3 n_local L_local + G L_k) / L_base.

    The query network takes n_local small crops and G = n_global large crops; the key network takes
    G large crops. G is 1 in the paper's formula and 2 in DINO's original code.
    """
    return n_global * moco_cost(l_q, l_k, convention) + 3 * n_local * convention.share(l_local)
