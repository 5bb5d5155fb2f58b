"""What each method's views are, as data: crop scale, jitter, blur, solarize."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class View:
    """One view of an image: the distribution its crop and its augmentation are drawn from.

    size: side of the square crop in pixels. scale, ratio: area fraction and aspect range of the
    random resized crop. jitter: strengths (brightness, contrast, saturation, hue) as torchvision's
    ColorJitter takes them, applied with probability jitter_p in random order. blur_sigma: range of
    the Gaussian blur in pixels. The order is crop, jitter, gray, blur, solarize, flip.

    swapped: the view whose augmentation takes this one's place in half of the samples. Which half
    is one draw for all views of a sample, so that two views swapped with each other trade places.
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
    """SimCLR's two views, drawn alike: jitter (.4, .4, .4, .1), gray .2, blur .5, flip.

    The setting that reaches SimCLR's published ViT-B/16 accuracy (ronghanghu/moco_v3_tpu,
    run_simclr_vit.py), milder than the first paper's jitter of .8.
    """
    strengths = (0.4, 0.4, 0.4, 0.1)
    query = View("query", size, scale, jitter=strengths, blur_p=0.5)
    return query, View("key", size, scale, jitter=strengths, blur_p=0.5)


def moco(
    size: int, scale: tuple[float, float] = (0.08, 1.0), *, swaps_roles: bool = True
) -> tuple[View, View]:
    """MoCo-v3's two views: one always blurred, one rarely (.1) but solarized (.2).

    Else alike: jitter (.4, .4, .2, .1), gray .2, flip (facebookresearch/moco-v3, main_moco.py).

    Its symmetric loss lets either view be the query. With one pair an image, swaps_roles draws for
    each sample which of the two augmentations the query gets: over the draws a pair is as often the
    one as the other, as in the symmetric run, whose pairs it thus equals in expectation. A batch is
    not the same: here its keys, and so the negatives, are of both kinds, there all of one.
    Crops are not swapped: they are drawn alike.
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
    """DINO's views: two large crops, augmented as MoCo-v3's, then n_local small ones, blurred (.5).

    All with jitter (.4, .4, .2, .1), gray .2, flip (facebookresearch/dino, main_dino.py, whose
    command for ViT-B/16 has these areas and ten small crops). swaps_roles: see `moco`; for where
    one large crop is query and the other key.
    """
    small = [
        View(f"small {number}", local_size, local_scale, blur_p=0.5)
        for number in range(1, n_local + 1)
    ]
    return *moco(size, scale, swaps_roles=swaps_roles), *small
