"""What a training step computes: the floating point operations of its matrix products.

A multiplication and an addition are two operations. All matrix products of forward and backward
count, once each, as the model is written: patch projection, blocks with the part of attention that
is quadratic in the tokens, head, loss. What a kernel computes twice (flash attention recomputes its
scores) or leaves out (rows that nothing reads) does not change the count, nor do norms, GELU, bias
and optimiser, which are no matrix products.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.compress.compression import TOKEN_VALUES


@dataclass(frozen=True)
class ModelShape:
    """What the count depends on. width, mlp, head: features; prefix: CLS and register tokens."""

    width: int
    depth: int
    mlp: int
    prefix: int
    head: tuple[int, ...]
    trains_projection: bool

    @classmethod
    def of(cls, objective: Objective) -> "ModelShape":
        """The shape of SimCLR on a timm VisionTransformer."""
        assert isinstance(objective, SimCLR)
        vit = objective.encoder.vit
        mlp = vit.blocks[0].get_submodule("mlp.fc1")
        assert isinstance(mlp, nn.Linear)
        linear = [layer for layer in objective.head.layers if isinstance(layer, nn.Linear)]
        return cls(
            width=vit.embed_dim,
            depth=len(vit.blocks),
            mlp=mlp.out_features,
            prefix=vit.num_prefix_tokens,
            head=tuple(layer.out_features for layer in linear),
            trains_projection=vit.patch_embed.proj.weight.requires_grad,
        )


def step_flops(shape: ModelShape, pairs: int, keep: int) -> int:
    """Operations of forward and backward for `pairs` images, two views of `keep` patches each."""
    views = 2 * pairs
    projection = 2 * views * keep * TOKEN_VALUES * shape.width
    # Pixels need no gradient: backward costs the projection one product, or none if it is frozen.
    trained = projection if shape.trains_projection else 0
    rest = views * _blocks(shape, keep + shape.prefix)
    rest += views * _head(shape) + 2 * views * views * shape.head[-1]
    return projection + trained + 3 * rest  # a product's backward is two of its size


def _blocks(shape: ModelShape, tokens: int) -> int:
    """Forward through the blocks; in the last one only CLS asks, is put out and goes on."""
    return (shape.depth - 1) * _block(shape, tokens, tokens) + _block(shape, tokens, 1)


def _block(shape: ModelShape, tokens: int, rows: int) -> int:
    """Forward of `rows` of a block's tokens: q, scores, sum of values, output, two layers of MLP;
    keys and values of all."""
    linear = 2 * rows * (2 * shape.width**2 + 2 * shape.width * shape.mlp)
    return linear + 4 * tokens * shape.width**2 + 4 * rows * tokens * shape.width


def _head(shape: ModelShape) -> int:
    """Forward of one view through the head's linear layers."""
    sides = (shape.width, *shape.head)
    return sum(2 * a * b for a, b in pairwise(sides))
