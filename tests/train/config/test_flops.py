"""The operations of a step are those that torch counts while it runs one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.residual import summed
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.loader import Tokens
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.flops import (
    ModelShape,
    Pass,
    image_flops,
    step_flops,
)
from accelssl.train.config.schedule import Stage, constant
from accelssl.train.methods.moco import moco_flops
from accelssl.train.methods.simclr import simclr_flops
from accelssl.train.objective import build

TINY = "vit_tiny_patch16_224"
HALVED = Compression(48, 0.5)


def counted(objective: Objective, views: list[Tokens]) -> int:
    # As matrix products: of the fused attention torch counts what its backward computes again.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        objective(*views).backward()
    return int(counter.get_total_flops())


def tokens(views: int, compression: Compression, size: int) -> Tokens:
    keep, grid = compression.keep(size), compression.grid(size)
    idx = torch.arange(keep).repeat(views, 1)
    return Tokens(torch.randn(views, keep, 768), idx, compression.p, grid)


def config_of(algo: str, compression: Compression, **options: Any) -> TrainConfig:
    small: dict[str, Any] = {"model": TINY, "head_hidden": 24, "head_out": 8, "batch": 3}
    return TrainConfig(
        algo=algo, data="", budget=1e6, schedule=constant(compression), **(small | options)
    )


def batch_of(config: TrainConfig) -> list[Tokens]:
    """What the loader gives for one step: DINO's small crops have a size of their own."""
    views = 2 + config.n_local
    taken = config.compressions(config.schedule.stages[0])
    sizes = [config.local_size if i % views >= 2 else config.size for i in range(len(taken))]
    return [tokens(config.batch, c, size) for c, size in zip(taken, sizes, strict=True)]


@pytest.mark.parametrize(
    ("algo", "compression", "options"),
    [
        ("simclr", HALVED, {}),
        ("simclr", Compression(40, 0.0), {"model": "vit_small_patch16_224", "batch": 2}),
        ("moco", HALVED, {}),
        ("moco", HALVED, {"symmetric": True, "batch": 2}),
        ("moco", UNCOMPRESSED, {"size": 48, "batch": 2}),
        ("dino", HALVED, {"n_local": 2, "local_size": 32, "prototypes": 40}),
        ("dino", HALVED, {"n_local": 0, "prototypes": 40}),
        (
            "dino",
            Compression(40, 0.25),
            {"n_local": 3, "local_size": 48, "prototypes": 16, "mode": "official", "batch": 2},
        ),
        # The table of positions is not resampled where it fits.
        ("dino", Compression(16, 0.9), {"size": 224, "prototypes": 16, "batch": 2}),
    ],
)
def test_a_steps_operations_are_those_that_torch_counts(
    algo: str, compression: Compression, options: dict[str, Any]
) -> None:
    config = config_of(algo, compression, **options)
    objective = build(config)
    expected = counted(objective, batch_of(config))
    stage = config.schedule.stages[0]
    assert step_flops(ModelShape.of(objective), config, stage) == expected
    assert image_flops(ModelShape.of(objective), config, stage) == expected / config.batch


def test_a_model_with_scaled_branches_counts_as_its_layers_are() -> None:
    objective = SimCLR("deit3_small_patch16_224", head_hidden=24, head_out=8)
    views = [tokens(2, HALVED, 240) for _ in range(2)]
    assert simclr_flops(ModelShape.of(objective), 2, HALVED.keep(240)) == counted(objective, views)


def test_a_block_that_is_computed_whole_counts_whole() -> None:
    objective = SimCLR(TINY, head_hidden=24, head_out=8)
    views = [tokens(2, HALVED, 240) for _ in range(2)]
    alone = ModelShape.of(objective)
    objective.encoder._cls_row = lambda block, x, branch: block(summed(x, branch))[:, :1]
    whole = replace(alone, ends_in_cls_row=False)
    assert simclr_flops(whole, 2, HALVED.keep(240)) == counted(objective, views)
    assert simclr_flops(alone, 2, HALVED.keep(240)) < simclr_flops(whole, 2, HALVED.keep(240))


def test_a_trained_projection_costs_one_product_more() -> None:
    trained = SimCLR(TINY, head_hidden=24, head_out=8, freeze_patch_embed=False)
    views = [tokens(3, HALVED, 240) for _ in range(2)]
    keep, shape = HALVED.keep(240), ModelShape.of(trained)
    assert simclr_flops(shape, 3, keep) == counted(trained, views)
    frozen = replace(shape, trains_projection=False)
    more = simclr_flops(shape, 3, keep) - simclr_flops(frozen, 3, keep)
    assert more == 2 * 2 * 3 * keep * 768 * 192


def test_vit_b_at_224_px_has_the_operations_that_it_is_known_for() -> None:
    """17.6 G multiplications forward, less what 196 rows of the last block would take."""
    shape = ModelShape(768, 12, 12 * 768**2, 1, ((768, 1),))
    projection = 2 * 196 * 768 * 768
    forward = (simclr_flops(shape, 1, 196) / 2 - projection) / 3 + projection
    other_rows = 196 * (10 * 768**2 + 2 * 197 * 768)
    assert forward / 2 == pytest.approx(17.6e9 - other_rows, rel=0.005)


def test_the_shape_of_a_model_needs_no_memory_for_it() -> None:
    config = config_of("dino", HALVED, n_local=2, prototypes=40)
    with torch.device("meta"):
        on_meta = build(config)
    assert ModelShape.of(on_meta) == ModelShape.of(build(config))
    assert isinstance(on_meta, DINO)


def test_a_key_costs_a_third_of_a_query_with_the_same_tokens() -> None:
    """As the paper's (3 L_q + L_k) has it, but for heads and the frozen patch projection."""
    shape = replace(ModelShape.of(MoCo(TINY, head_hidden=8, head_out=8)), head=((1, 1),))
    both, nothing = Pass(1, 225, 15, 16), Pass(1, 0, 15, 16)
    query, key = moco_flops(shape, both, nothing), moco_flops(shape, nothing, both)
    assert 2.9 < query / key < 3


def test_stages_of_a_schedule_are_counted_one_by_one() -> None:
    config = config_of("simclr", HALVED)
    shape = ModelShape.of(build(config))
    dear = step_flops(shape, config, Stage(1.0, UNCOMPRESSED))
    assert dear / step_flops(shape, config, Stage(0.5, HALVED)) > 225 / 12
