"""How far the op's augmentation is from torchvision's and Pillow's, in 8-bit levels, step by step.

`accelssl doctor --augmentations` prints it. torchvision computes in 8 bits, as most training code
has it do, and in float; Pillow's figures are of torchvision's Pillow backend, and of Pillow's own
GaussianBlur, which the papers' code blurs with. The op is called as training calls it; p = 16 and
all patches kept give the picture back. torchvision is imported when called: accelssl needs it for
nothing else.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.compress.deviation_steps import STEPS, Step, sample_pictures
from accelssl.pipeline.compress.op import Implementation, augment_patchify
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.compression import BASE_SIDE, CHANNELS
from accelssl.pipeline.draws.augmentation import identity


@dataclass(frozen=True)
class Gap:
    """The largest and the mean difference over all values of all pictures, in 8-bit levels."""

    largest: float
    mean: float

    def __str__(self) -> str:
        return f"{self.largest:.2f} {self.mean:.3f}"


@dataclass(frozen=True)
class Deviation:
    """One step's gaps, and the reason for what is more than rounding in float."""

    step: str
    eight_bits: Gap
    floats: Gap
    pillow: Gap
    why: str


@dataclass(frozen=True)
class Deviations:
    """The table."""

    implementation: str
    device: str
    rows: tuple[Deviation, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.implementation} on {self.device}: largest and mean difference in 8-bit levels",
            _line("", "torchvision, 8 bits", "torchvision, float", "Pillow"),
        ]
        lines += [_line(row.step, row.eight_bits, row.floats, row.pillow) for row in self.rows]
        steps_of: dict[str, list[str]] = {}
        for row in self.rows:
            steps_of.setdefault(row.why, []).append(row.step)
        reasons = [f"{'; '.join(steps)}: {why}" for why, steps in steps_of.items()]
        return "\n".join([*lines, "", *reasons])


def _line(*cells: object) -> str:
    first, *rest = map(str, cells)
    return f"{first:<20}" + "".join(f"{cell:>21}" for cell in rest)


def augmentation_deviations(
    implementation: Implementation = "auto", device: torch.device | str = "cpu"
) -> Deviations:
    """Compare each step alone, and a whole chain, on the pictures of sample_pictures.

    Raises UserError without torchvision, or for an implementation that needs a GPU without one.
    """
    device = torch.device(device)
    if implementation in ("cuda", "triton") and device.type != "cuda":
        raise UserError(
            f"The implementation {implementation} does not run on {device}.",
            'Use a GPU, or the implementation "torch".',
        )
    tv = _torchvision()
    crops = torch.from_numpy(sample_pictures())
    rows = tuple(_compared(step, crops, tv, implementation, device) for step in STEPS)
    return Deviations(implementation, str(device), rows)


def _torchvision() -> ModuleType:
    try:
        import torchvision.transforms.v2.functional as functional
    except ImportError as error:
        raise UserError(
            f"torchvision, which to compare with, cannot be imported ({error}).",
            "Install it with: pip install torchvision",
        ) from error
    module: ModuleType = functional
    return module


def _compared(
    step: Step,
    crops_NHWC: Tensor,
    tv: ModuleType,
    implementation: Implementation,
    device: torch.device,
) -> Deviation:
    ours = _levels(crops_NHWC, step, implementation, device)
    images = crops_NHWC.permute(0, 3, 1, 2)
    eight_bits = step.change(tv, images)
    floats = step.change(tv, images.double() / 255) * 255
    with_pillow = step.pillow or step.change
    pictures = [with_pillow(tv, Image.fromarray(crop.numpy())) for crop in crops_NHWC]
    pillow = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    return Deviation(
        step.name,
        _gap(ours, eight_bits),
        _gap(ours, floats),
        _gap(ours, pillow.permute(0, 3, 1, 2)),
        step.why,
    )


def _levels(
    crops_NHWC: Tensor, step: Step, implementation: Implementation, device: torch.device
) -> Tensor:
    """Return the op's crops in 8-bit levels, NCHW: its tokens, put together again."""
    n, side = crops_NHWC.shape[:2]
    grid = side // BASE_SIDE
    params = torch.from_numpy(identity(n))
    for column, value in step.params.items():
        params[:, column] = value
    keep_idx = torch.arange(grid * grid).repeat(n, 1)
    crops, params, keep_idx = (x.to(device) for x in (crops_NHWC, params, keep_idx))
    tokens = augment_patchify(crops, params, keep_idx, BASE_SIDE, torch.float32, implementation)
    patches = tokens.cpu().double().view(n, grid, grid, CHANNELS, BASE_SIDE, BASE_SIDE)
    images = patches.permute(0, 3, 1, 4, 2, 5).reshape(n, CHANNELS, side, side)
    std, mean = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_STD, IMAGENET_MEAN))
    return (images * std + mean) * 255


def _gap(ours: Tensor, theirs: Tensor) -> Gap:
    apart = (ours - theirs.double()).abs()
    return Gap(float(apart.max()), float(apart.mean()))
