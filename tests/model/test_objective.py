import math
from types import SimpleNamespace

import pytest
import torch

from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective, spread_of
from accelssl.model.simclr import SimCLR

TINY = "vit_tiny_patch16_224"


def view(values: torch.Tensor) -> SimpleNamespace:
    keep_idx = torch.arange(values.shape[1]).repeat(len(values), 1)
    return SimpleNamespace(values_NLV=values, keep_idx_NL=keep_idx, p=48, grid=5)


def by_loops(features: torch.Tensor) -> float:
    rows = [row / row.norm() for row in features.double()]
    mean = sum(rows) / len(rows)
    return math.sqrt(float(sum(((row - mean) ** 2).sum() for row in rows) / len(rows)))


def test_spread_is_the_standard_deviation_of_normalised_features() -> None:
    features = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)) + 1
    assert float(spread_of(features)) == pytest.approx(by_loops(features), rel=1e-6)
    assert float(spread_of(3 * features)) == pytest.approx(by_loops(features), rel=1e-6)


def test_spread_is_one_where_features_point_anywhere_and_zero_where_all_are_the_same() -> None:
    features = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    assert float(spread_of(features)) == pytest.approx(1.0, abs=0.01)
    assert float(spread_of(features[:1].expand(50, -1))) == pytest.approx(0.0, abs=1e-6)


def test_one_minus_its_square_is_the_mean_cosine_of_two_images() -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) + 2
    unit = features / features.norm(dim=1, keepdim=True)
    cosine = float((unit @ unit.T).mean())
    assert 1 - float(spread_of(features)) ** 2 == pytest.approx(cosine, rel=1e-5)


@pytest.mark.parametrize("method", [SimCLR, MoCo, DINO])
def test_an_objective_notes_the_spread_of_its_querys_features(method: type[Objective]) -> None:
    torch.manual_seed(0)
    extra = {"prototypes": 12, "drop_path": 0.0} if method is DINO else {}
    objective = method(TINY, head_hidden=16, head_out=8, **extra)  # type: ignore[call-arg]
    views = [view(torch.randn(4, 6, 768)) for _ in range(2)]
    objective(*views)
    seen = views if method is SimCLR else views[:1]
    features = [objective.encoders()[0](v.values_NLV, v.keep_idx_NL, v.p, v.grid) for v in seen]
    expected = by_loops(torch.cat(features).detach())
    assert float(objective.spread) == pytest.approx(expected, rel=1e-4)
    assert 0.01 < expected < 0.99 and not objective.spread.requires_grad
    assert objective.noted["spread"] is objective.spread
    assert not set(objective.noted) & set(objective.state_dict())
    same = view(torch.randn(1, 6, 768).expand(4, -1, -1))
    objective(same, same)
    assert float(objective.spread) < 1e-3
