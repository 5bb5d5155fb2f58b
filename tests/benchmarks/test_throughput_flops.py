"""The operations of a step are those that torch counts while it runs one."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accelssl.benchmarks.throughput_flops import ModelShape, step_flops
from accelssl.model.simclr import SimCLR
from accelssl.pipeline.loader import Tokens


def views(pairs: int, keep: int) -> list[Tokens]:
    idx = torch.arange(keep).repeat(pairs, 1)
    return [Tokens(torch.randn(pairs, keep, 768), idx, 16, 15) for _ in range(2)]


@pytest.mark.parametrize(
    ("model", "pairs", "keep", "head", "is_frozen"),
    [
        ("vit_tiny_patch16_224", 2, 7, (64, 32), True),
        ("vit_tiny_patch16_224", 3, 1, (48, 8), False),
        ("vit_small_patch16_224", 2, 12, (96, 16), True),
    ],
)
def test_a_steps_operations_are_those_that_torch_counts(
    model: str, pairs: int, keep: int, head: tuple[int, int], is_frozen: bool
) -> None:
    hidden, out = head
    objective = SimCLR(model, head_hidden=hidden, head_out=out, freeze_patch_embed=is_frozen)
    # As matrix products: of the fused attention torch counts what its backward computes again.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        objective(*views(pairs, keep)).backward()
    assert step_flops(ModelShape.of(objective), pairs, keep) == counter.get_total_flops()


def test_vit_b_at_224_px_has_the_operations_that_it_is_known_for() -> None:
    """17.6 G multiplications forward, less what 196 rows of the last block would take."""
    shape = ModelShape(768, 12, 3072, 1, (1,), trains_projection=False)
    projection = 2 * 196 * 768 * 768
    forward = (step_flops(shape, 1, 196) / 2 - projection) / 3 + projection
    other_rows = 196 * (10 * 768**2 + 2 * 197 * 768)
    assert forward / 2 == pytest.approx(17.6e9 - other_rows, rel=0.005)


def test_a_trained_projection_costs_one_product_more() -> None:
    frozen = ModelShape(192, 12, 768, 1, (64, 32), trains_projection=False)
    trained = ModelShape(192, 12, 768, 1, (64, 32), trains_projection=True)
    assert step_flops(trained, 4, 9) - step_flops(frozen, 4, 9) == 2 * 8 * 9 * 768 * 192
