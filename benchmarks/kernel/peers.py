"""Comparisons for the op in torch: the definition, and a version that compiles as one graph.

Shapes as in reference.py: N crops, H = W pixels, L kept patches, V values a token.

The definition groups samples by what is done to them, which needs their parameters on the host: a
compiler breaks off there. StaticChain computes the same tokens without looking. Its jitter takes
all four steps at each of the four positions and selects by the sample's order, which a compiler
fuses into one pass between two mean grays. What can be known beforehand is given to it: which steps
the view has at all, and how many samples are blurred, so that it blurs no more than these (a real
loader could at best round up that number). Blur is a sum over shifted images, which fuses too,
unlike a convolution with weights for each sample. In all, it is what an expert would write.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.shrink import shrink_matrix
from accelssl.pipeline.compression import BASE_SIDE
from accelssl.pipeline.draws.augmentation import JITTER_OPS, JITTER_ORDERS, Column


class StaticChain(nn.Module):
    """The definition's tokens_NLV, with no control flow that depends on values.

    jitters, grays, solarizes: whether any sample does. blurred: at least the number of samples
    with a blur; 0 leaves the blur out. If these are wrong, so are the tokens: StaticChain.of.
    """

    orders: Tensor
    turns: Tensor
    mean: Tensor
    std: Tensor
    matrix: Tensor

    def __init__(
        self,
        p: int,
        jitters: bool,
        grays: bool,
        blurred: int,
        solarizes: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.p, self.dtype = p, dtype
        self.jitters, self.grays, self.blurred, self.solarizes = jitters, grays, blurred, solarizes
        for name, values in (
            ("orders", torch.tensor(JITTER_ORDERS)),
            ("turns", torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1)),
            ("mean", torch.tensor(reference.IMAGENET_MEAN).view(3, 1, 1)),
            ("std", torch.tensor(reference.IMAGENET_STD).view(3, 1, 1)),
            ("matrix", torch.tensor(shrink_matrix(p), dtype=torch.float32)),
        ):
            self.register_buffer(name, values)

    @classmethod
    def of(
        cls, params: Sequence[Tensor], p: int, dtype: torch.dtype = torch.float32
    ) -> "StaticChain":
        """Return the smallest chain that covers the batches with these params_NP."""
        every = torch.cat(list(params))
        return cls(
            p,
            jitters=bool((every[:, Column.ORDER] >= 0).any()),
            grays=bool((every[:, Column.GRAY] > 0).any()),
            blurred=max(int((params_NP[:, Column.SIGMA] > 0).sum()) for params_NP in params),
            solarizes=bool((every[:, Column.SOLARIZE] > 0).any()),
            dtype=dtype,
        ).to(every.device)

    def forward(self, crops_NHWC: Tensor, params_NP: Tensor, keep_idx_NL: Tensor) -> Tensor:
        images = crops_NHWC.permute(0, 3, 1, 2).contiguous().float() / 255
        if self.jitters:
            images = self._jittered(images, params_NP)
        if self.grays:
            is_gray = params_NP[:, Column.GRAY, None, None, None] > 0
            images = torch.where(is_gray, reference.gray(images), images)
        if self.blurred:
            images = self._blurred(images, params_NP[:, Column.SIGMA])
        if self.solarizes:
            is_solarized = params_NP[:, Column.SOLARIZE, None, None, None] > 0
            images = torch.where(is_solarized, reference.solarize(images), images)
        is_flipped = params_NP[:, Column.FLIP, None, None, None] > 0
        images = torch.where(is_flipped, images.flip(-1), images)
        images = (images - self.mean) / self.std
        patches = reference.kept_patches(images.contiguous(), keep_idx_NL, self.p)
        if self.p != BASE_SIDE:
            patches = self.matrix @ patches @ self.matrix.T
        return patches.flatten(2).to(self.dtype)

    def _jittered(self, images: Tensor, params_NP: Tensor) -> Tensor:
        order = params_NP[:, Column.ORDER].long()
        steps_N4 = torch.where(order[:, None] >= 0, self.orders[order.clamp(min=0)], -1)
        changes: dict[Column, Callable[[Tensor, Tensor], Tensor]] = {
            Column.BRIGHTNESS: reference.adjust_brightness,
            Column.CONTRAST: reference.adjust_contrast,
            Column.SATURATION: reference.adjust_saturation,
            Column.HUE: self._hue_turned,
        }
        for position in range(len(JITTER_OPS)):
            step, before = steps_N4[:, position, None, None, None], images
            for column in JITTER_OPS:
                after = changes[column](before, params_NP[:, column, None, None, None])
                images = torch.where(step == int(column), after, images)
        return images

    def _hue_turned(self, images: Tensor, turn_N111: Tensor) -> Tensor:
        """Apply reference.adjust_hue, with its constants where a captured graph can read them."""
        r, g, b = images.unbind(1)
        v, chroma = images.amax(1), images.amax(1) - images.amin(1)
        safe = torch.where(chroma > 0, chroma, 1)
        h = torch.where(v == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
        h = torch.where(v == r, (g - b) / safe, h)
        k = torch.remainder(h[:, None] + self.turns + 6 * turn_N111, 6)
        return v[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)

    def _blurred(self, images: Tensor, sigma_N: Tensor) -> Tensor:
        """Blur the `blurred` samples of the largest sigma; leave samples without blur unchanged."""
        radius, (height, width) = reference.BLUR_RADIUS, images.shape[-2:]
        sigma, chosen = torch.topk(sigma_N, self.blurred)
        offsets = torch.arange(-radius, radius + 1, device=images.device)
        bells = torch.exp(-0.5 * (offsets / sigma.clamp(min=1e-3)[:, None]) ** 2)
        taps = (bells / bells.sum(1, keepdim=True))[:, :, None, None, None]
        padded = F.pad(images[chosen], [radius] * 4, mode="reflect")
        rows = taps[:, 0] * padded[..., :width]
        for k in range(1, 2 * radius + 1):
            rows = rows + taps[:, k] * padded[..., k : k + width]
        both = taps[:, 0] * rows[..., :height, :]
        for k in range(1, 2 * radius + 1):
            both = both + taps[:, k] * rows[..., k : k + height, :]
        return images.index_copy(0, chosen, both)
