"""The least time that the parts of a training step can take on a device of given peaks.

Matrix products are bound by operations, what stands between them by bytes. Bytes are those that
separate kernels must move between memory and processors, each tensor read or written once, in the
precision of the products: a residual stream in float32 costs more, and is above the floor.
"""

from dataclasses import dataclass, replace

from accelssl.benchmarks.step.kernels import Part
from accelssl.train.config.flops import ModelShape
from accelssl.train.methods.simclr import simclr_flops


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a device: operations of matrix products a second, bytes that copies read
    and write a second."""

    flops_per_s: float
    bytes_per_s: float


def floors(
    shape: ModelShape, pairs: int, keep: int, trained: int, value_bytes: int, peaks: Peaks
) -> dict[Part, float]:
    """Return the seconds of each part of a SimCLR step that has a floor.

    pairs: images, of two views with `keep` patches each. trained: parameters that are. value_bytes:
    of a number in the matrix products.

    - matrix products: the encoder's operations without attention's, by the peak.
    - heads and loss: the longer of their operations, by the same peak though the loss's are in
      float32, and of reading their weights and writing the gradients, 8 bytes a weight.
    - attention: the longer of its operations and attention_bytes.
    - layer norm: layer_norm_bytes. activation: activation_bytes.
    - optimiser: AdamW reads weights, gradients and two moments and writes all but the gradients, 28
      bytes a parameter, all of them float32.
    """
    encoder = simclr_flops(replace(shape, head=((0, 0),)), pairs, keep)
    heads = simclr_flops(shape, pairs, keep) - encoder
    head_weights = sum(a * b for a, b in shape.head)
    views, tokens = 2 * pairs, keep + shape.prefix
    quadratic = attention_flops(shape, views, tokens)
    token_bytes = views * tokens * shape.width * value_bytes

    def moving_s(moved_bytes: float) -> float:
        return moved_bytes / peaks.bytes_per_s

    return {
        "matrix products": (encoder - quadratic) / peaks.flops_per_s,
        "attention": max(
            quadratic / peaks.flops_per_s, moving_s(attention_bytes(shape, token_bytes))
        ),
        "layer norm": moving_s(layer_norm_bytes(shape, token_bytes)),
        "activation": moving_s(activation_bytes(shape, token_bytes)),
        "heads and loss": max(heads / peaks.flops_per_s, moving_s(8 * head_weights)),
        "optimiser": moving_s(28 * trained),
    }


def attention_flops(shape: ModelShape, views: int, tokens: int) -> int:
    """Scores and sums of values, forward and backward: in the last block for the CLS row alone."""
    rows = (shape.depth - 1) * tokens + (1 if shape.ends_in_cls_row else tokens)
    return 3 * views * 4 * rows * tokens * shape.width


def attention_bytes(shape: ModelShape, token_bytes: int) -> int:
    """Forward reads queries, keys and values and writes the output; backward reads these four and
    the output's gradient and writes three gradients: 12 tensors of `token_bytes` each.

    For the CLS row alone 6: keys and values forward, both and their gradients backward.
    """
    whole = shape.depth - shape.ends_in_cls_row
    return (12 * whole + 6 * shape.ends_in_cls_row) * token_bytes


def layer_norm_bytes(shape: ModelShape, token_bytes: int) -> int:
    """Count bytes of norms with the residual sums before: forward reads branch and stream, writes
    their sum and its norm, backward reads the norm's gradient, the sum and the stream's gradient
    and writes the sum's: 8 tensors of `token_bytes` each.

    The first norm has no sum before it, and nothing before it needs a gradient but tokens and
    positions: 4. Where CLS alone leaves the last block, its first norm neither writes its sum nor
    gets a gradient of it: 6. Norms of the CLS row alone are not counted.
    """
    norms = 4 + 8 * (2 * shape.depth - 1) - 10 * shape.ends_in_cls_row
    return norms * token_bytes


def activation_bytes(shape: ModelShape, token_bytes: int) -> int:
    """Count bytes of MLPs: forward reads the first layer's output, writes its activation; backward
    reads both's gradient and the former and writes a gradient: 5 tensors, as much wider than
    `token_bytes` as the layer is. Of a CLS row alone it is not counted.
    """
    whole = shape.depth - shape.ends_in_cls_row
    attention_weights = 4 * shape.width**2
    widths = (shape.block_weights - attention_weights) / (2 * shape.width**2)
    return round(5 * whole * widths * token_bytes)
