"""Count of the floating-point operations in the matrix products of a training step.

A multiplication and an addition are two operations. Each matrix product of forward and backward
counts once: patch projection, learned positions, blocks, heads, prototypes and loss. Blocks include
the part of attention that is quadratic in the tokens; the last block computes only the CLS row.
Frozen modules and moving averages have no backward. Recomputation in a kernel (flash attention
recomputes its scores) does not count. Norms, GELU, bias, softmax, augmentation and optimiser do not
count either, because they are not matrix products. The methods (train/methods) add up these parts.

The paper's units (cost.py) depend only on the number of patch tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelssl.pipeline.compression import BASE_SIDE, TOKEN_VALUES

if TYPE_CHECKING:
    from torch import nn

    from accelssl.model.objective import Objective
    from accelssl.train.config.config import TrainConfig
    from accelssl.train.config.schedule import Stage


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model that determine the count.

    width: the number of features.
    block_weights: the number of weights in a block's linear layers, without biases.
    prefix: the number of CLS and register tokens.
    head, predictor: (inputs, outputs) of each linear layer, including the prototypes.
    trains_projection: True if the patch projection is trained.
    table_side: the side of the table of learned positions, 0 for fixed positions.
    ends_in_cls_row: True if the last block computes only its CLS row (model/cls_block.py).
    """

    width: int
    depth: int
    block_weights: int
    prefix: int
    head: tuple[tuple[int, int], ...]
    predictor: tuple[tuple[int, int], ...] = ()
    trains_projection: bool = False
    table_side: int = 0
    ends_in_cls_row: bool = True

    @classmethod
    def of(cls, objective: Objective) -> ModelShape:
        """Read the shape from an objective."""
        from accelssl.model.cls_block import is_plain

        head, *predictors = objective.heads()
        vit = objective.encoders()[0].vit
        learned = vit.pos_embed is not None and vit.pos_embed.requires_grad
        return cls(
            width=vit.embed_dim,
            depth=len(vit.blocks),
            block_weights=sum(a * b for a, b in _linear(vit.blocks[0])),
            prefix=vit.num_prefix_tokens,
            head=_linear(head),
            predictor=_linear(predictors[0]) if predictors else (),
            trains_projection=vit.patch_embed.proj.weight.requires_grad,
            table_side=vit.patch_embed.grid_size[0] if learned else 0,
            ends_in_cls_row=is_plain(vit.blocks[-1]),
        )


def _linear(module: nn.Module) -> tuple[tuple[int, int], ...]:
    from torch import nn

    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return tuple((layer.in_features, layer.out_features) for layer in layers)


@dataclass(frozen=True)
class Pass:
    """Pass of several views through the encoder, with `patches` patches each.

    The patches have side p and come from a grid of grid x grid patches.
    """

    views: int
    patches: int
    grid: int
    p: int


def image_flops(shape: ModelShape, config: TrainConfig, stage: Stage) -> float:
    """Return the operations of a step in `stage` per image of the batch."""
    return step_flops(shape, config, stage) / config.batch


def step_flops(shape: ModelShape, config: TrainConfig, stage: Stage) -> int:
    """Return the operations of forward and backward for the global batch, over all ranks."""
    return config.method.step_flops(shape, config.batch, stage.compression)


def trained(shape: ModelShape, views: Pass) -> int:
    """Count forward and backward through the encoder: a product's backward is two of its size.

    Pixels need no gradient, so the projection's backward is one product, or none if the projection
    is frozen. The weights of positions need none either.
    """
    projection, positions = _projection(shape, views), _positions(shape, views)
    return (
        projection * (2 if shape.trains_projection else 1)
        + 2 * positions
        + 3 * _blocks(shape, views)
    )


def forward(shape: ModelShape, views: Pass) -> int:
    """Count a forward pass through the encoder."""
    return _projection(shape, views) + _positions(shape, views) + _blocks(shape, views)


def _projection(shape: ModelShape, views: Pass) -> int:
    return 2 * views.views * views.patches * TOKEN_VALUES * shape.width


def _positions(shape: ModelShape, views: Pass) -> int:
    """Count the resampling of learned positions, rows then columns, once for all views.

    A table that fits the grid without resampling needs no operations.
    """
    side = shape.table_side
    if not side or (views.grid, views.p) == (side, BASE_SIDE):
        return 0
    return 2 * views.grid * side * (side + views.grid) * shape.width


def _blocks(shape: ModelShape, views: Pass) -> int:
    tokens = views.patches + shape.prefix
    last = 1 if shape.ends_in_cls_row else tokens
    return views.views * (
        (shape.depth - 1) * _block(shape, tokens, tokens) + _block(shape, tokens, last)
    )


def _block(shape: ModelShape, tokens: int, rows: int) -> int:
    """Count a forward pass through a block that computes `rows` of its tokens.

    Keys and values are computed for all tokens. The other linear layers, the scores and the sums of
    values are computed for `rows` tokens only.
    """
    keys_values = 2 * shape.width**2
    others = shape.block_weights - keys_values
    return 2 * (tokens * keys_values + rows * others) + 4 * rows * tokens * shape.width


def linear(sides: Iterable[tuple[int, int]]) -> int:
    """Count the forward pass of one row through linear layers."""
    return sum(2 * a * b for a, b in sides)
