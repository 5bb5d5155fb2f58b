"""Data path on a GPU against the same path on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from accelssl.pipeline import views
from accelssl.pipeline.compress.op import augment_patchify
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.augmentation import augmentation
from accelssl.pipeline.draws.drops import kept_patches
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.pipeline.views import View
from accelssl.shards.shard_set import ShardSet

pytestmark = pytest.mark.gpu
CPU = LoaderOptions(batch=8, seed=3, device=torch.device("cpu"))


@pytest.mark.parametrize("p", [16, 30, 48])
def test_the_op_gives_on_the_gpu_what_its_definition_gives_on_the_cpu(p: int) -> None:
    rng, ids = np.random.default_rng(p), np.arange(16)
    crops = torch.from_numpy(rng.integers(0, 256, (16, 240, 240, 3)).astype(np.uint8))
    params = torch.from_numpy(augmentation(views.simclr(240)[0], 0, 0, 0, ids))
    kept = torch.from_numpy(kept_patches(0, 0, ids, 0, (240 // p) ** 2, 12))
    on_cpu = augment_patchify(crops, params, kept, p)
    on_gpu = augment_patchify(crops.cuda(), params.cuda(), kept.cuda(), p)
    error = (on_gpu.cpu() - on_cpu).abs()
    # Solarize and clamping are steps: rounding may move single values across.
    assert float(error.quantile(0.999)) < 1e-3
    assert float(error.mean()) < 1e-4


HALF, WHOLE, SMALL = Compression(30, 0.5), Compression(30, 0.0), Compression(16, 0.0)


@pytest.mark.parametrize(
    ("seen", "compression"),
    [
        (views.simclr(240), (HALF, HALF)),
        (views.dino(240, n_local=3), (HALF, HALF, SMALL, SMALL, SMALL, WHOLE, WHOLE)),
    ],
    ids=["simclr", "dino"],
)
def test_a_gpu_loader_gives_the_cpu_loaders_tokens_but_for_its_decoder(
    shard_set: ShardSet, seen: tuple[View, ...], compression: tuple[Compression, ...]
) -> None:
    train = shard_set.split("train")
    on_cpu = Loader(train, seen, CPU)
    on_gpu = Loader(train, seen, replace(CPU, device=torch.device("cuda")))
    for _ in range(12):
        a, b = on_cpu.next(compression), on_gpu.next(compression)
        assert (a.samples_N == b.samples_N).all()
        for view_a, view_b in zip(a.views, b.views, strict=True):
            assert torch.equal(view_a.keep_idx_NL, view_b.keep_idx_NL.cpu())
            error = (view_a.values_NLV - view_b.values_NLV.cpu()).abs()
            assert float(error.mean()) < 0.05


def test_crops_are_not_overwritten_while_the_gpu_is_behind(shard_set: ShardSet) -> None:
    """DALI may reuse a buffer only after the kernels that read it."""
    train, compression = shard_set.split("train"), (Compression(16, 0.0),) * 2
    options = replace(CPU, device=torch.device("cuda"))
    calm, busy = (Loader(train, views.simclr(240), options) for _ in range(2))
    expected = [calm.next(compression).views[0].values_NLV.clone() for _ in range(10)]
    torch.cuda.synchronize()
    load = torch.randn(6000, 6000, device="cuda")
    got = []
    for _ in range(10):
        for _ in range(10):
            load = load @ load
            load = load / load.norm()
        got.append(busy.next(compression).views[0].values_NLV)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
