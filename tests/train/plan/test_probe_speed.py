"""How fast this machine would train: steps on batches like the loader's, each stage by itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Batch, Loader
from accelssl.shards.shard_set import ShardSet
from accelssl.train.config.schedule import Schedule, Stage
from accelssl.train.plan.probe_speed import probe_speed, synthetic_batch
from accelssl.train.session import loader_options, run_views
from accelssl.train.step import Step
from tests import small_vit
from tests.train.any_run import CPU, config_on


@pytest.mark.parametrize(
    ("algo", "options"),
    [
        ("simclr", {}),
        ("moco", {"symmetric": True}),
        ("dino", {"n_local": 2, "local_size": 32}),
        ("dino", {"n_local": 1, "local_size": 32, "mode": "official"}),
    ],
)
def test_synthetic_batches_are_shaped_as_the_loaders(
    algo: str, options: dict[str, Any], shard_dir: Path, shard_set: ShardSet
) -> None:
    config = config_on(shard_dir, algo, **options)
    stage = config.schedule.stages[0]
    loader = Loader(shard_set.split("train"), run_views(config), loader_options(config, CPU))
    real = loader.next(config.compressions(stage))
    loader.close()
    made = synthetic_batch(config, stage, config.batch, CPU)
    assert len(made.views) == len(real.views)
    for a, b in zip(made.views, real.views, strict=True):
        assert (a.values_NLV.shape, a.values_NLV.dtype) == (b.values_NLV.shape, b.values_NLV.dtype)
        assert (a.keep_idx_NL.shape, a.keep_idx_NL.dtype) == (
            b.keep_idx_NL.shape,
            b.keep_idx_NL.dtype,
        )
        assert (a.p, a.grid) == (b.p, b.grid)


def test_a_probe_measures_every_stage_and_scales_for_ranks(
    shard_dir: Path, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelssl.train.plan.probe_speed.ENOUGH_S", 0.05)
    stages = (Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(16, 0.0)))
    config = replace(
        config_on(shard_dir, budget=1e4, model=small_vit.NAME), schedule=Schedule(stages)
    )
    heard: list[str] = []
    speed = probe_speed(config, shard_set, CPU, 2, heard.append)
    assert heard == ["the loader", "steps of p48 d0.5", "steps of p16 d0"]
    assert not speed.loads_meanwhile
    cheap, dear = speed.stages
    assert cheap.step_s > 0 and dear.step_s > 0
    assert (cheap.loader_images_per_s or 0) > 0
    assert any("2 GPUs" in said for said in speed.assumptions)


def test_a_stages_time_is_that_of_its_own_steps(
    shard_dir: Path, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is timed for a stage ran on tokens of its compression, and on no others."""
    met: list[Any] = []
    stages = (Stage(0.5, Compression(48, 0.5)), Stage(1.0, Compression(40, 0.0)))
    config = replace(
        config_on(shard_dir, budget=1e4, model=small_vit.NAME), schedule=Schedule(stages)
    )

    def noted(step: Step, batch: Batch, *_: Any) -> torch.Tensor:
        met.extend({(view.p, view.keep_idx_NL.shape[1]) for view in batch.views})
        return torch.zeros(())

    def timed(call: Callable[[], object], *_: Any) -> float:
        before = len(met)
        call()
        ran = set(met[before:])
        return 1e9 if len(ran) != 1 else float(ran.pop()[0])  # its p for seconds

    monkeypatch.setattr(Step, "__call__", noted)
    monkeypatch.setattr("accelssl.train.plan.probe_speed.seconds_a_call", timed)
    monkeypatch.setattr("accelssl.train.plan.probe_speed._loader_seconds", lambda *_: [1.0, 1.0])
    speed = probe_speed(config, shard_set, CPU, 1)
    assert [stage.step_s for stage in speed.stages] == [48.0, 40.0]
    assert met == [(48, 12), (40, 36)]


@pytest.mark.gpu
def test_a_probe_on_a_gpu_overlaps_data_and_gives_its_memory_back(
    shard_dir: Path, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelssl.train.plan.probe_speed.ENOUGH_S", 0.1)
    config = config_on(shard_dir, "moco", precision="bf16")
    before = torch.cuda.memory_allocated()
    speed = probe_speed(config, shard_set, torch.device("cuda"), 1)
    assert speed.loads_meanwhile and speed.stages[0].step_s > 0
    torch._C._cuda_clearCublasWorkspaces()  # cuBLAS keeps 32 MiB for each stream it worked on
    assert torch.cuda.memory_allocated() - before < 2**20


@pytest.mark.parametrize(
    "said", ["CUDA out of memory. Tried to allocate 2 GiB.", "CUDA error: out of memory"]
)
def test_a_probe_that_does_not_fit_the_memory_is_refused_with_what_helps(
    said: str, shard_dir: Path, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr("accelssl.train.plan.probe_speed.new_step", no_room)
    with pytest.raises(UserError, match="A step of 8 images does not fit the memory of cpu"):
        probe_speed(config_on(shard_dir), shard_set, CPU, 1)
