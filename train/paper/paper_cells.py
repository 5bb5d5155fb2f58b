"""What *Accelerating Augmentation Invariance Pretraining* prints of costs and budgets.

Numbers as they stand there, as text: how many digits are printed is what a recomputation is held
to. MoCo-v3 with one pair an image unless said otherwise. No torch.
"""

from dataclasses import dataclass

from accelssl.pipeline.compression import PATCH_SIDES

BASE_SIZE, PATCH_SIZE = 224, 240
"""Sides of the crops: of the token dropping table, and of everything about patches."""

DROPPED_LENGTHS = {20: 0.9, 40: 0.8, 50: 0.75, 100: 0.5, 197: 0.0}
"""Tokens with CLS, as the token dropping table names them, and the fraction dropped."""

TOKEN_DROPPING = (
    (20, 20, "0.4"),
    (20, 40, "0.5"),
    (20, 197, "1.3"),
    (50, 50, "1.0"),
    (50, 100, "1.3"),
    (50, 197, "1.8"),
    (100, 100, "2.0"),
    (100, 197, "2.5"),
    (197, 197, "4.0"),
)
"""L_q and L_k with CLS, units an image."""

SYMMETRIC_PATCHES = (
    (16, "225", "4.59"),
    (20, "144", "2.94"),
    (24, "100", "2.04"),
    (30, "64", "1.31"),
    (40, "36", "0.73"),
)
"""p of query and key, L without CLS, units an image."""

ASYMMETRIC_PATCHES = ((30, 16, "2.1"), (30, 20, "1.7"), (30, 24, "1.5"), (30, 30, "1.3"))
"""p of the query, p of the key, units an image."""

FIGURE_SIDES, FIGURE_DROPS = PATCH_SIDES, (0.0, 0.25, 0.5, 0.75, 0.9)
"""The cost figure's thirty cells, with uncompressed keys. It prints no numbers; the text says that
its last cell is as much as four times cheaper than its first."""
FIGURE_SPEED_UP = "4"


@dataclass(frozen=True)
class BudgetReading:
    """A printed budget in millions of units, and what it might be the product of.

    times: how often the method's formula would have been counted. Images and, of SimCLR and DINO,
    epochs are not stated: these readings come near. n_local: DINO's small crops, n_global its large
    crops that are queries, and as many keys.
    """

    run: str
    printed: str
    algo: str
    epochs: int
    images: int
    times: int = 1
    n_local: int = 0
    n_global: int = 1


IN100_STATED, IN100_READ, IN100_COUNTED = 125_000, 130_000, 126_689
IN1K_READ, IN1K_COUNTED = 1_285_000, 1_281_167
"""Images: as the text says ("around"), as the budgets would have it, and as there are."""


def _mocos() -> tuple[BudgetReading, ...]:
    in100 = (
        BudgetReading("MoCo-v3, IN-100", printed, "moco", epochs, images)
        for epochs, printed in ((200, "104"), (600, "312"), (1000, "520"))
        for images in (IN100_READ, IN100_COUNTED, IN100_STATED)
    )
    in1k = (
        BudgetReading("MoCo-v3, IN-1k", printed, "moco", epochs, images, times)
        for epochs, printed in ((100, "1028"), (300, "3084"), (600, "6168"))
        for images, times in ((IN1K_READ, 2), (IN1K_COUNTED, 2), (IN1K_COUNTED, 1))
    )
    return *in100, *in1k


BUDGETS = (
    *_mocos(),
    BudgetReading("SimCLR, IN-1k", "3075", "simclr", 400, IN1K_COUNTED),
    BudgetReading("SimCLR, IN-1k, as if MoCo-v3", "3075", "moco", 300, IN1K_COUNTED, 2),
    BudgetReading("DINO, IN-1k", "2846", "dino", 300, IN1K_READ, n_local=6),
    BudgetReading("DINO, IN-1k", "2846", "dino", 300, IN1K_COUNTED, n_local=6),
    BudgetReading("DINO, IN-1k", "2846", "dino", 300, IN1K_COUNTED, n_local=8),
    BudgetReading("DINO, IN-1k", "2846", "dino", 300, IN1K_COUNTED, n_local=10, n_global=2),
)

SPEED_UPS = (
    ("MoCo-v3, IN-1k", 6168, 1542, "4"),
    ("MoCo-v3, IN-1k (first figure)", 3084, 1028, "3"),
    ("MoCo-v3, IN-100 (first figure)", 520, 104, "5"),
    ("SimCLR, IN-1k", 3075, 922, "3.3"),
    ("DINO, IN-1k", 2846, 1138, "2.5"),
)
"""Budgets in millions, uncompressed and accelerated, and the claimed ratio."""
SHARES = (
    ("MoCo-v3, IN-1k", 6168, 1542, "25"),
    ("MoCo-v3, IN-100", 520, 150, "<30"),
    ("Token dropping study, IN-100", 520, 104, "20"),
)
"""The same as a share in per cent, as the text says it."""

STEPS_BUDGET, STEPS_BATCH = 104e6, 512
"""Of the IN-100 runs: the budget that most are compared at, and the batch."""
