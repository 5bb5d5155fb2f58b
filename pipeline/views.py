"""Views of each method: the distributions of crop scale, jitter, blur and solarize."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class View:
    """View of an image: the distributions of its crop and of its augmentation.

    size: side of the square crop in pixels. scale, ratio: area fraction and aspect range of the
    random resized crop. jitter: strengths (brightness, contrast, saturation, hue) as torchvision's
    ColorJitter takes them, applied with probability jitter_p in random order. blur_sigma: range of
    the Gaussian blur in pixels. The order is crop, jitter, gray, blur, solarize, flip.

    swapped: a view whose augmentation replaces this view's in half of the samples. One draw per
    sample selects the half for all views, so two views can exchange their augmentations.
    """

    name: str
    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_p: float = 0.8
    gray_p: float = 0.2
    blur_p: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_p: float = 0.0
    flip_p: float = 0.5
    swapped: View | None = None


def simclr(size: int, scale: tuple[float, float] = (0.08, 1.0)) -> tuple[View, View]:
    """Return SimCLR's two views: jitter (.4, .4, .4, .1), gray .2, blur .5, flip.

    Both have the same distribution. This setting reaches SimCLR's published ViT-B/16 accuracy
    (ronghanghu/moco_v3_tpu, run_simclr_vit.py); its jitter is weaker than the first paper's .8.
    """
    strengths = (0.4, 0.4, 0.4, 0.1)
    query = View("query", size, scale, jitter=strengths, blur_p=0.5)
    return query, View("key", size, scale, jitter=strengths, blur_p=0.5)


def moco(
    size: int, scale: tuple[float, float] = (0.08, 1.0), *, swaps_roles: bool = True
) -> tuple[View, View]:
    """Return MoCo-v3's two views: one always blurred, one rarely blurred (.1) but solarized (.2).

    Both have jitter (.4, .4, .2, .1), gray .2, flip (facebookresearch/moco-v3, main_moco.py).

    In MoCo-v3's symmetric loss each view is query and key. With one pair per image, swaps_roles
    draws for each sample which of the two augmentations the query gets. The pairs then equal those
    of the symmetric loss in expectation. The batches differ: their keys, and so the negatives, have
    both augmentations, while in the symmetric loss all keys of a batch have one.
    Crops need no swap: both views have the same distribution of crops.
    """
    blurred = View("query", size, scale, blur_p=1.0)
    solarized = View("key", size, scale, blur_p=0.1, solarize_p=0.2)
    if not swaps_roles:
        return blurred, solarized
    return replace(blurred, swapped=solarized), replace(solarized, swapped=blurred)


def dino(
    size: int,
    scale: tuple[float, float] = (0.25, 1.0),
    *,
    n_local: int = 10,
    local_size: int = 96,
    local_scale: tuple[float, float] = (0.05, 0.25),
    swaps_roles: bool = True,
) -> tuple[View, ...]:
    """Return DINO's views: two large crops, then n_local small crops with blur .5.

    The large crops are augmented as MoCo-v3's. All crops have jitter (.4, .4, .2, .1), gray .2 and
    flip (facebookresearch/dino, main_dino.py; its ViT-B/16 command has these areas and ten small
    crops). swaps_roles: see `moco`; use it if one large crop is the query and the other the key.
    """
    small = [
        View(f"small {number}", local_size, local_scale, blur_p=0.5)
        for number in range(1, n_local + 1)
    ]
    return *moco(size, scale, swaps_roles=swaps_roles), *small
