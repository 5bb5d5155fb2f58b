"""Gradients of whole objectives: what one is, what it leaves alone, and how they are added up."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.errors import UserError
from accelssl.model.dino import DINO
from accelssl.model.moco import MoCo, contrast
from accelssl.model.objective import Objective
from accelssl.model.simclr import nt_xent
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.pipeline.draws.order import Position
from accelssl.pipeline.loader import Loader, Tokens
from accelssl.shards.shard_set import ShardSet
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Stage
from accelssl.train.gradients.analysis import AnalysisPlan, Sketch, cells_that_fit, sums_of
from accelssl.train.gradients.gradient import Gradient
from accelssl.train.objective import build
from accelssl.train.session import loader_options, run_views
from tests import small_vit
from tests.train.any_run import CPU, config_on

GPU = torch.device("cuda")
SMALL: dict[str, Any] = {"model": small_vit.NAME, "size": 96, "batch": 4}
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"algo": "simclr"},
    "moco": {"algo": "moco"},
    "symmetric": {"algo": "moco", "symmetric": True},
    "dino": {"algo": "dino", "n_local": 1, "local_size": 32, "prototypes": 24, "drop_path": 0.3},
    "official": {
        **{"algo": "dino", "mode": "official", "n_local": 1, "local_size": 32},
        **{"prototypes": 24, "drop_path": 0.3},
    },
}
CELLS = (Compression(48, 0.5), UNCOMPRESSED, Compression(24, 0.0))


@pytest.fixture(params=METHODS)
def config(request: pytest.FixtureRequest, shard_dir: Path) -> TrainConfig:
    return config_on(shard_dir, **(METHODS[request.param] | SMALL))


def loader_of(config: TrainConfig, shard_set: ShardSet) -> Loader:
    return Loader(shard_set.split("train"), run_views(config), loader_options(config, CPU))


def asked(config: TrainConfig, cell: Compression) -> tuple[Compression, ...]:
    return config.compressions(Stage(1.0, cell))


def build_with_a_key_that_lags(config: TrainConfig) -> Objective:
    """Build an objective whose key encoder, where it has one, is not its query encoder."""
    objective, generator = build(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in objective.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return objective


def oracle(objective: Objective, views: Sequence[Tokens], progress: float) -> Tensor:
    """Of a copy whose key stays where it is, by torch.autograd.grad."""
    other = copy.deepcopy(objective).train()
    other.set_progress(progress)
    if isinstance(other, MoCo | DINO):
        other.key.share.zero_()
    for encoder in other.encoders():
        encoder.leave_out_drop_path()
    parameters = {n: p for n, p in other.named_parameters() if p.requires_grad}
    loss = other(*views)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    parts = []
    for (name, parameter), part in zip(parameters.items(), found, strict=True):
        still = "prototypes" in name and progress < 0.0075
        parts.append(torch.zeros_like(parameter) if part is None or still else part)
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_a_gradient_is_that_of_the_loss_and_leaves_the_objective_as_it_was(
    config: TrainConfig, shard_set: ShardSet, progress: float
) -> None:
    objective = build_with_a_key_that_lags(config)
    (batch,) = loader_of(config, shard_set).next_in_turn([asked(config, CELLS[0])])
    expected = oracle(objective, batch.views, progress)
    before = copy.deepcopy(objective.state_dict())
    gradient = Gradient(objective, progress, "fp32")
    found = gradient(batch.views)
    assert found.dtype == torch.float32 and len(found) == gradient.size
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(gradient(batch.views), found)
    after = objective.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_scope_backbone_has_the_encoders_part_alone(
    config: TrainConfig, shard_set: ShardSet
) -> None:
    objective = build(config)
    (batch,) = loader_of(config, shard_set).next_in_turn([asked(config, CELLS[0])])
    whole = Gradient(copy.deepcopy(objective), 0.5, "fp32")(batch.views)
    part = Gradient(objective, 0.5, "fp32", "backbone")(batch.views)
    trained = [p for p in objective.encoders()[0].parameters() if p.requires_grad]
    assert len(part) == sum(p.numel() for p in trained) < len(whole)
    assert torch.equal(part, whole[: len(part)])  # the encoder's parameters come first


def test_a_batch_in_turn_is_what_loaders_of_each_compression_give(
    config: TrainConfig, shard_set: ShardSet
) -> None:
    loader = loader_of(config, shard_set)
    several = [asked(config, cell) for cell in CELLS]
    found = list(loader.next_in_turn(several))
    assert loader.position == Position(0, 1)
    for compressions, batch in zip(several, found, strict=True):
        alone = loader_of(config, shard_set).next(compressions)
        assert (alone.samples_N == batch.samples_N).all()
        for expected, view in zip(alone.views, batch.views, strict=True):
            assert torch.equal(view.values_NLV, expected.values_NLV)
            assert torch.equal(view.keep_idx_NL, expected.keep_idx_NL)
    second = next(loader.next_in_turn(several[:1]))
    assert not (second.samples_N == found[0].samples_N).all()


def test_sums_are_those_of_gradients_that_are_all_kept(
    config: TrainConfig, shard_set: ShardSet
) -> None:
    """In groups of other sizes, with the baseline among the cells."""
    gradient, plan = Gradient(build(config), 0.5, "fp32"), AnalysisPlan(5)
    several = [asked(config, cell) for cell in CELLS]
    baseline, calls = asked(config, UNCOMPRESSED), []
    loader = loader_of(config, shard_set)
    found = sums_of(gradient, loader, baseline, several, plan, lambda: calls.append(1))
    assert len(calls) == 5 * len(CELLS)

    rows: list[list[np.ndarray[Any, np.dtype[np.float64]]]] = [[] for _ in CELLS]
    wholes = []
    loader = loader_of(config, shard_set)
    for _ in range(5):
        first, *others = loader.next_in_turn([baseline, *several])
        wholes.append(gradient(first.views).double().numpy())
        for row, batch in zip(rows, others, strict=True):
            row.append(gradient(batch.views).double().numpy())
    G = np.stack(wholes)
    for sums, row in zip(found, rows, strict=True):
        g = np.stack(row)
        assert sums.sizes_J.tolist() == [1] * 5
        for norms, x in ((sums.baseline, G), (sums.compressed, g), (sums.difference, G - g)):
            np.testing.assert_allclose(norms.squares_J, (x**2).sum(1), rtol=1e-4, atol=1e-12)
            assert norms.of_sum == pytest.approx((x.sum(0) ** 2).sum(), rel=1e-4)
            folded = np.square(norms.sketches_JM).sum(1)
            np.testing.assert_allclose(folded, (x**2).sum(1), rtol=0.1, atol=1e-9)
    assert found[1].difference.of_sum == 0 and not found[1].difference.squares_J.any()


def test_groups_share_the_subbatches_evenly() -> None:
    assert AnalysisPlan(4).ends == [1, 2, 3, 4]
    sizes = np.diff([0, *AnalysisPlan(37).ends])
    assert len(sizes) == 16 and sizes.sum() == 37 and set(sizes) == {2, 3}


def test_a_bank_of_the_other_images_makes_a_part_of_a_batch_meet_all_of_it() -> None:
    """The loss of a batch is the mean of its parts', each with the others as its bank; so is the
    gradient of MoCo's queries, whose keys are constants anyway."""
    generator = torch.Generator().manual_seed(0)
    z_q, z_k = (torch.randn(12, 8, generator=generator).double() for _ in range(2))
    unit = torch.nn.functional.normalize(z_k)
    whole_q = z_q.clone().requires_grad_()
    contrast(whole_q, z_k, 0.2).backward()  # type: ignore[no-untyped-call]
    losses, parts_q = [], z_q.clone().requires_grad_()
    for start in range(0, 12, 4):
        rows = slice(start, start + 4)
        bank = torch.cat([unit[:start], unit[start + 4 :]])
        losses.append(contrast(parts_q[rows], z_k[rows], 0.2, bank))
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(parts_q.grad, whole_q.grad)

    parts = []
    for start in range(0, 12, 4):
        others = list(torch.cat([z_q.view(3, 4, 8), z_k.view(3, 4, 8)]))
        kept = [z for place, z in enumerate(others) if place % 3 != start // 4]
        rows = slice(start, start + 4)
        bank = torch.nn.functional.normalize(torch.cat(kept))
        parts.append(nt_xent(z_q[rows], z_k[rows], 0.1, bank))
    torch.testing.assert_close(torch.stack(parts).mean(), nt_xent(z_q, z_k, 0.1))


@pytest.mark.parametrize("config", ["simclr", "moco", "symmetric"], indirect=True)
def test_a_bank_is_of_other_images_in_each_cells_own_compression(
    config: TrainConfig, shard_set: ShardSet
) -> None:
    gradient = Gradient(build(config), 0.5, "fp32")
    several, baseline = [asked(config, CELLS[0])], asked(config, UNCOMPRESSED)
    found = sums_of(gradient, loader_of(config, shard_set), baseline, several, AnalysisPlan(4, 2))

    loader, banks = loader_of(config, shard_set), []
    for _ in range(2):
        batches = loader.next_in_turn([baseline, *several])
        banks.append([gradient.negatives(batch.views) for batch in batches])
    terms = len(banks[0][0])
    assert terms == (2 if config.symmetric else 1)
    rows = 2 * config.batch if config.algo == "simclr" else config.batch
    assert banks[0][0][0].shape == (rows, config.head_out)
    norms = []
    for _ in range(4):
        _, batch = loader.next_in_turn([baseline, *several])
        bank = tuple(torch.cat([banks[k][1][term] for k in range(2)]) for term in range(terms))
        norms.append(float(gradient(batch.views, bank).double().square().sum()))
        without = float(gradient(batch.views).double().square().sum())
        assert norms[-1] != pytest.approx(without, rel=1e-4)
    np.testing.assert_allclose(found[0].compressed.squares_J, norms, rtol=1e-6)


def test_a_gradient_that_is_not_finite_is_refused(shard_dir: Path, shard_set: ShardSet) -> None:
    config = config_on(shard_dir, **SMALL)
    objective = build(config)
    with torch.no_grad():
        for weight in objective.evaluated.vit.norm.parameters():
            weight.fill_(torch.inf)
    gradient, baseline = Gradient(objective, 0.5, "fp32"), asked(config, UNCOMPRESSED)
    with pytest.raises(UserError, match="not finite"):
        sums_of(gradient, loader_of(config, shard_set), baseline, [baseline], AnalysisPlan(4))


@pytest.mark.gpu
def test_a_gpu_finds_the_gradient_of_a_cpu_and_the_same_sketch(
    config: TrainConfig, shard_set: ShardSet
) -> None:
    objective = build(config)
    (batch,) = loader_of(config, shard_set).next_in_turn([asked(config, CELLS[0])])
    expected = Gradient(copy.deepcopy(objective), 0.5, "fp32")(batch.views)
    gradient = Gradient(objective.to(GPU), 0.5, "fp32")
    found = gradient(on_gpu(batch.views))
    assert far(found, expected) < 1e-2
    sketches = [Sketch(len(x), x.device)(x) for x in (found, found.cpu())]
    torch.testing.assert_close(sketches[0], sketches[1], rtol=1e-3, atol=1e-5)
    assert cells_that_fit(gradient) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replayed_gradient_is_that_of_its_own_views_and_bank(
    config: TrainConfig, shard_set: ShardSet, precision: str
) -> None:
    """Every shape once as it is, then twice as a graph, each time with other images."""
    objective, loader = build(config).to(GPU), loader_of(config, shard_set)
    plain, replayed = (Gradient(copy.deepcopy(objective), 0.5, precision) for _ in range(2))
    plain._replays = None
    views = [asked(config, cell) for cell in CELLS]
    banks = [plain.negatives(on_gpu(batch.views)) for batch in loader.next_in_turn(views)]
    for _ in range(3):
        for batch, bank in zip(loader.next_in_turn(views), banks, strict=True):
            here = on_gpu(batch.views)
            assert far(replayed(here, bank), plain(here, bank)) < 1e-2
            bank = tuple(bank_BE.roll(1, 1) for bank_BE in bank)
            assert far(replayed(here, bank), plain(here, bank)) < 1e-2


def on_gpu(views: Sequence[Tokens]) -> list[Tokens]:
    return [
        replace(view, values_NLV=view.values_NLV.to(GPU), keep_idx_NL=view.keep_idx_NL.to(GPU))
        for view in views
    ]


def far(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu() - expected.cpu()).norm() / expected.norm())
