"""What a training step computes: the floating point operations of its matrix products.

A multiplication and an addition are two operations. All matrix products of forward and backward
count, once each, as the model is written: patch projection, learned positions, blocks with the part
of attention that is quadratic in the tokens and the CLS row alone in the last, heads, prototypes,
loss. What is frozen or an average has no backward. What a kernel computes twice (flash attention
recomputes its scores) does not change the count, nor do norms, GELU, bias, softmax, augmentation
and optimiser, which are no matrix products.

The paper's units (cost.py) leave out all of that but the tokens: here is what they stand for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn

from accelssl.model.cls_block import is_plain
from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.model.vit import Encoder
from accelssl.pipeline.compression import BASE_SIDE, TOKEN_VALUES, UNCOMPRESSED
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Stage


@dataclass(frozen=True)
class ModelShape:
    """What the count depends on.

    width: features; block_weights: of a block's linear layers, without biases; prefix: CLS and
    register tokens; head, predictor: (inputs, outputs) of linear layers, the prototypes among them;
    trains_projection: of patches; table_side: of learned positions, 0 where they are fixed;
    ends_in_cls_row: whether the last block computes its CLS row alone (model/cls_block.py).
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
    def of(cls, objective: Objective) -> "ModelShape":
        """The shape of one of the three methods."""
        if isinstance(objective, SimCLR):
            return cls._of(objective.encoder, objective.head)
        if isinstance(objective, MoCo):
            query = objective.query
            return cls._of(query.encoder, query.projector, objective.predictor)
        assert isinstance(objective, DINO)
        return cls._of(objective.query.encoder, objective.query.head)

    @classmethod
    def _of(
        cls, encoder: Encoder, head: nn.Module, predictor: nn.Module | None = None
    ) -> "ModelShape":
        vit = encoder.vit
        learned = vit.pos_embed is not None and vit.pos_embed.requires_grad
        return cls(
            width=vit.embed_dim,
            depth=len(vit.blocks),
            block_weights=sum(a * b for a, b in _linear(vit.blocks[0])),
            prefix=vit.num_prefix_tokens,
            head=_linear(head),
            predictor=_linear(predictor) if predictor else (),
            trains_projection=vit.patch_embed.proj.weight.requires_grad,
            table_side=vit.patch_embed.grid_size[0] if learned else 0,
            ends_in_cls_row=is_plain(vit.blocks[-1]),
        )


def _linear(module: nn.Module) -> tuple[tuple[int, int], ...]:
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return tuple((layer.in_features, layer.out_features) for layer in layers)


@dataclass(frozen=True)
class Pass:
    """Views that go through the encoder together: `patches` each of a grid x grid of side p."""

    views: int
    patches: int
    grid: int
    p: int


def image_flops(shape: ModelShape, config: TrainConfig, stage: Stage) -> float:
    """Operations of a step in `stage` for each image of its batch."""
    return step_flops(shape, config, stage) / config.batch


def step_flops(shape: ModelShape, config: TrainConfig, stage: Stage) -> int:
    """Operations of forward and backward for a batch of all ranks, whatever their number."""
    n, size = config.batch, config.size
    whole = replace(stage.compression, drop=0.0)
    query, key = (Pass(n, c.keep(size), c.grid(size), c.p) for c in (stage.compression, whole))
    if config.algo == "simclr":
        return simclr_flops(shape, n, query.patches)
    if config.algo == "moco":
        return moco_flops(shape, query, key) * (2 if config.symmetric else 1)
    grid = UNCOMPRESSED.grid(config.local_size) if config.n_local else 0
    small = Pass(n, grid**2, grid, UNCOMPRESSED.p)
    return dino_flops(shape, query, small, key, 1 + (config.mode == "official"), config.n_local)


def simclr_flops(shape: ModelShape, pairs: int, patches: int) -> int:
    """Two views of each of `pairs` images, `patches` tokens each, meet all others.

    With fixed positions, as SimCLR has them, the places of the patches make no difference.
    """
    views = 2 * pairs
    loss = 2 * views**2 * shape.head[-1][1]
    encoder = _trained(shape, Pass(views, patches, 0, BASE_SIDE))
    return encoder + 3 * (views * _layers(shape.head) + loss)


def moco_flops(shape: ModelShape, query: Pass, key: Pass) -> int:
    """One pair an image: a query meets all keys, which need no gradient."""
    loss = 2 * query.views * key.views * shape.head[-1][1]
    trained = _trained(shape, query) + 3 * query.views * (
        _layers(shape.head) + _layers(shape.predictor)
    )
    return trained + _forward(shape, key) + key.views * _layers(shape.head) + 2 * loss


def dino_flops(
    shape: ModelShape, query: Pass, small: Pass, key: Pass, n_global: int, n_local: int
) -> int:
    """n_global large crops are query and as many key; n_local small ones are queries too.

    The three are of one crop. Those of a kind go through the encoder together.
    """
    n, prototypes = query.views, shape.head[-1][1]
    passes = [_times(query, n_global), *([_times(small, n_local)] if n_local else [])]
    queries = n_global + n_local
    trained = sum(_trained(shape, each) for each in passes) + 3 * queries * n * _layers(shape.head)
    keys = _forward(shape, _times(key, n_global)) + n_global * n * _layers(shape.head)
    loss = 2 * n * n_global * queries * prototypes
    return trained + keys + 2 * loss


def _times(each: Pass, views: int) -> Pass:
    return Pass(each.views * views, each.patches, each.grid, each.p)


def _trained(shape: ModelShape, views: Pass) -> int:
    """Forward and backward: a product's backward is two of its size. Pixels need no gradient, so
    that of the projection is one, or none if it is frozen; nor do the weights of positions."""
    projection, positions = _projection(shape, views), _positions(shape, views)
    return (
        projection * (2 if shape.trains_projection else 1)
        + 2 * positions
        + 3 * _blocks(shape, views)
    )


def _forward(shape: ModelShape, views: Pass) -> int:
    return _projection(shape, views) + _positions(shape, views) + _blocks(shape, views)


def _projection(shape: ModelShape, views: Pass) -> int:
    return 2 * views.views * views.patches * TOKEN_VALUES * shape.width


def _positions(shape: ModelShape, views: Pass) -> int:
    """Rows, then columns of a learned table, once for all views; none where it fits as it is."""
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
    """Of a block: keys and values of all tokens; of `rows` of them all other linear layers, scores
    and the sum of values."""
    keys_values = 2 * shape.width**2
    others = shape.block_weights - keys_values
    return 2 * (tokens * keys_values + rows * others) + 4 * rows * tokens * shape.width


def _layers(sides: Iterable[tuple[int, int]]) -> int:
    """Forward of one row through linear layers."""
    return sum(2 * a * b for a, b in sides)
