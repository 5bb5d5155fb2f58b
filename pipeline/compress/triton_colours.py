# Triton comes without types, and its tiles have none that a checker could use.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Colour steps of the fused op in Triton: jitter, gray, solarize, mean; see reference.py.

r, g, b are float32 tiles of one channel each; `row` points at a sample's parameters.
"""

import triton
import triton.language as tl

from accelssl.pipeline.compress.reference import GRAY_WEIGHTS, IMAGENET_MEAN
from accelssl.pipeline.draws.augmentation import JITTER_OPS, JITTER_ORDERS, Column


def _packed(position: int) -> int:
    """Pack the step at this position of each of the 24 orders, two bits per order."""
    steps = [JITTER_OPS.index(order[position]) for order in JITTER_ORDERS]
    return sum(step << 2 * number for number, step in enumerate(steps))


STEP_0, STEP_1, STEP_2, STEP_3 = (tl.constexpr(_packed(position)) for position in range(4))
BRIGHTNESS, CONTRAST, _SATURATION, HUE = (tl.constexpr(step) for step in range(4))
FACTORS = tl.constexpr(int(JITTER_OPS[0]))
ORDER, GRAY = tl.constexpr(int(Column.ORDER)), tl.constexpr(int(Column.GRAY))
SOLARIZE = tl.constexpr(int(Column.SOLARIZE))
GRAY_R, GRAY_G, GRAY_B = (tl.constexpr(weight) for weight in GRAY_WEIGHTS)
MEAN_R, MEAN_G, MEAN_B = (tl.constexpr(mean) for mean in IMAGENET_MEAN)


@triton.jit
def load_levels(red_at, inside):
    """Load packed pixels as r, g, b in [0, 1], with quotients rounded as in the definition."""
    r = tl.load(red_at, mask=inside, other=0).to(tl.float32)
    g = tl.load(red_at + 1, mask=inside, other=0).to(tl.float32)
    b = tl.load(red_at + 2, mask=inside, other=0).to(tl.float32)
    return tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)


@triton.jit
def jittered_and_gray(r, g, b, row, mean):
    """Apply the four jitter steps in the sample's order, if any, then gray if its flag is set.

    `mean` is the mean gray of the crop before the contrast step.
    """
    order = tl.load(row + ORDER).to(tl.int32)
    r, g, b = _jitter(r, g, b, order, tl.where(order >= 0, 4, 0), row, mean)
    if tl.load(row + GRAY) > 0:
        gray = _gray(r, g, b)
        r, g, b = gray, gray, gray
    return r, g, b


@triton.jit
def gray_before_contrast(r, g, b, order, row):
    """Return the gray of the pixels before the contrast step."""
    before = 0
    # The bound keeps an invalid order from hanging the device.
    while (before < 3) & (_step(order, before) != CONTRAST):
        before += 1
    r, g, b = _jitter(r, g, b, order, before, row, 0.0)
    return _gray(r, g, b)


@triton.jit
def solarized_and_centred(r, g, b, row):
    """Solarize if the flag is set, then subtract ImageNet's mean (the first half of normalise)."""
    if tl.load(row + SOLARIZE) > 0:
        r = tl.where(r >= 0.5, 1.0 - r, r)
        g = tl.where(g >= 0.5, 1.0 - g, g)
        b = tl.where(b >= 0.5, 1.0 - b, b)
    return r - MEAN_R, g - MEAN_G, b - MEAN_B


@triton.jit
def _step(order, position):
    """Return the step, 0 to 3, at this position of the order."""
    low = tl.where(position == 0, STEP_0, STEP_1)
    high = tl.where(position == 2, STEP_2, STEP_3)
    packed = tl.where(position < 2, low, high)
    return ((packed >> (2 * order).to(tl.int64)) & 3).to(tl.int32)


@triton.jit
def _jitter(r, g, b, order, end, row, mean):
    """Apply the steps of the order before position `end`."""
    position = 0
    while position < end:
        step = _step(order, position)
        factor = tl.load(row + FACTORS + step)
        if step == HUE:
            r, g, b = _turn(r, g, b, factor)
        else:
            other = tl.where(step == CONTRAST, mean, _gray(r, g, b))
            other = tl.where(step == BRIGHTNESS, 0.0, other)
            # Blend from the nearer end, as torch.lerp: a factor of 1 changes no bit.
            is_far = (step == BRIGHTNESS) | (factor < 0.5)
            weight = tl.where(is_far, factor, factor - 1)
            r = tl.clamp(tl.where(is_far, other, r) + (r - other) * weight, 0.0, 1.0)
            g = tl.clamp(tl.where(is_far, other, g) + (g - other) * weight, 0.0, 1.0)
            b = tl.clamp(tl.where(is_far, other, b) + (b - other) * weight, 0.0, 1.0)
        position += 1
    return r, g, b


@triton.jit
def _gray(r, g, b):
    return r * GRAY_R + g * GRAY_G + b * GRAY_B


@triton.jit
def _turn(r, g, b, turn):
    """Turn the hue, as the definition's adjust_hue; h is in sixths of the circle."""
    value = tl.maximum(tl.maximum(r, g), b)
    chroma = value - tl.minimum(tl.minimum(r, g), b)
    past = tl.where(value == r, g - b, tl.where(value == g, b - r, r - g))
    start = tl.where(value == r, 0.0, tl.where(value == g, 2.0, 4.0))
    h = start + past / tl.where(chroma > 0, chroma, 1.0)
    r = _channel(value, chroma, h + 5.0 + 6.0 * turn)
    g = _channel(value, chroma, h + 3.0 + 6.0 * turn)
    b = _channel(value, chroma, h + 1.0 + 6.0 * turn)
    return r, g, b


@triton.jit
def _channel(value, chroma, k):
    k = k - 6.0 * tl.floor(k / 6.0)
    return value - chroma * tl.clamp(tl.minimum(k, 4.0 - k), 0.0, 1.0)
