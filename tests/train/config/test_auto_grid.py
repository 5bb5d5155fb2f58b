"""--auto-patches and --auto-drops: among which compressions a run with --schedule auto chooses."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from accelssl.errors import UserError
from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.checkpoints import checkpoint
from accelssl.train.checkpoints.resuming import fixed_of
from accelssl.train.config.auto import BEFORE, UNSAID, Auto, AutoOptions, read_auto
from accelssl.train.config.compression_options import refuse_another
from accelssl.train.config.config import DEFAULT_COMPRESSION, TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.gradients.grid import analysis_units
from accelssl.train.gradients.sample_size import FEWEST_SUBBATCHES, affordable
from accelssl.train.log.progress import progress_bar
from accelssl.train.loop import train
from accelssl.train.session import resume, start
from tests.train.any_run import CPU, config_on
from tests.train.log.run_log import lines

BY_ITSELF = (None, None, "auto")
FED = AutoOptions(patches="30,16,20,24", drops="0,.25,.5,.75")


def config_of(auto: AutoOptions = UNSAID, **options: Any) -> TrainConfig:
    chosen: dict[str, Any] = {"budget": 104e6, "schedule": BEFORE, "auto": read_auto(auto)}
    return TrainConfig("moco", "vit_base_patch16_224", "shards", **(chosen | options))


def cells(sides: tuple[int, ...], drops: tuple[float, ...]) -> set[Compression]:
    return {Compression(side, drop) for side, drop in product(sides, drops)}


def least_budget(config: TrainConfig) -> float:
    """That pays for as few images as may be, in as many compressions as now."""
    return 4 * analysis_units(config, affordable(config).cells, FEWEST_SUBBATCHES * 64) / 0.02


def test_a_run_chooses_among_what_it_was_given() -> None:
    found = affordable(config_of(FED)).cells
    assert set(found) == cells((16, 20, 24, 30), (0, 0.25, 0.5, 0.75)) and len(found) == 16
    only_sides = affordable(config_of(AutoOptions(patches="16,48"))).cells
    assert set(only_sides) == cells((16, 48), (0, 0.25, 0.5, 0.75, 0.9))
    only_drops = affordable(config_of(AutoOptions(drops="0,.5"))).cells
    assert set(only_drops) == cells((16, 20, 24, 30, 40, 48), (0, 0.5))


@pytest.mark.parametrize("given", [AutoOptions(patches="24,30"), AutoOptions(drops=".5,.75")])
def test_the_uncompressed_is_among_them_unasked_and_costs_nothing_more(given: AutoOptions) -> None:
    """What the others are held against is computed anyway."""
    config = config_of(given)
    found = affordable(config).cells
    assert found.count(UNCOMPRESSED) == 1
    others = [cell for cell in found if cell != UNCOMPRESSED]
    assert all(cell.p != 16 or cell.drop for cell in others)
    assert analysis_units(config, others, 64) == pytest.approx(analysis_units(config, found, 64))


def test_with_too_few_images_fewer_are_compared_but_none_that_were_not_given() -> None:
    config = config_of(FED)
    seen = []
    for _ in range(3):
        seen.append(set(affordable(config).cells))
        config = replace(config, budget=0.999 * least_budget(config))
    assert seen == [
        cells((16, 20, 24, 30), (0, 0.25, 0.5, 0.75)),
        cells((16, 24, 30), (0, 0.25, 0.5, 0.75)),
        cells((16, 24, 30), (0, 0.5, 0.75)),
    ]
    with pytest.raises(UserError, match="8 are needed") as refused:
        affordable(config)
    assert "--auto-patches" in refused.value.remedy


def test_a_comparison_is_never_cut_down_to_one_compression() -> None:
    config = config_of(AutoOptions(patches="16,20", drops="0,.9"))
    few = replace(config, budget=0.999 * least_budget(config))
    assert set(affordable(few).cells) == cells((16,), (0, 0.9))
    with pytest.raises(UserError, match="8 are needed"):
        affordable(replace(few, budget=0.999 * least_budget(few)))


@pytest.mark.parametrize(
    ("auto", "size"),
    [(AutoOptions(patches="16", drops="0"), 240), (AutoOptions(drops="0"), 32), (UNSAID, 16)],
)
def test_where_there_is_nothing_to_choose_a_run_is_refused(auto: AutoOptions, size: int) -> None:
    with pytest.raises(UserError, match="nothing to choose from but p16 d0") as refused:
        affordable(config_of(auto, size=size))
    assert "--auto-patches and --auto-drops" in refused.value.remedy


@pytest.mark.parametrize(
    ("patches", "drops", "what", "remedy"),
    [
        ("16,17", None, "--auto-patches 17 is no patch side", "16,20,24,30,40,48"),
        ("16,24.5", None, "--auto-patches 16,24.5 is no list", "--auto-patches 16,24,48"),
        ("", None, "--auto-patches  is no list", "--auto-patches 16,24,48"),
        ("16,20", None, r"96 px \(--size\) .* --auto-patches 20", "16,24,48, or a --size that 20"),
        (None, "0,1", "--auto-drops 1 is not a fraction", "--auto-drops 0,.25,.5,.75"),
        (None, "0,-.5", "--auto-drops -0.5 is not a fraction", "--auto-drops 0,.25,.5,.75"),
        (None, "0,half", "--auto-drops 0,half is no list", "--auto-drops 0,0.25,0.5"),
        (None, "0,nan", "--auto-drops 0,nan is no list", "--auto-drops 0,0.25,0.5"),
        (None, "0,.9", r"--auto-drops 0.9 .* 4 patches \(p = 48, 96 px\)", "at most 0.75, or a"),
        ("16,24", "0,.99", r"--auto-drops 0.99 .* 16 patches", "at most 0.9375, or a smaller"),
    ],
)
def test_sides_and_drops_that_make_no_sense_are_refused_with_what_does(
    patches: str | None, drops: str | None, what: str, remedy: str
) -> None:
    with pytest.raises(UserError, match=what) as refused:
        config_of(AutoOptions(patches=patches, drops=drops), size=96)
    assert remedy in refused.value.remedy


def test_drops_that_leave_nothing_of_large_patches_do_for_smaller_ones() -> None:
    found = affordable(config_of(AutoOptions(patches="16,24", drops="0,.9"), size=96)).cells
    assert set(found) == cells((16, 24), (0, 0.9))


def test_a_configuration_is_read_back_with_its_sides_and_drops(tmp_path: Path) -> None:
    config, path = config_of(FED), tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()))
    assert read_config(path) == config
    for damaged in ({"patches": [24.5]}, {"patches": 24}, {"drops": ["0"]}, {"drops": [True]}):
        content = config.to_json()
        path.write_text(json.dumps(content | {"auto": content["auto"] | damaged}))
        with pytest.raises(UserError, match="is not the configuration of a run"):
            read_config(path)


def test_what_runs_wrote_before_there_were_sides_and_drops_is_still_theirs(tmp_path: Path) -> None:
    path, auto = tmp_path / "config.json", '{"share": 0.02, "at": [0.0, 0.25, 0.5, 0.75]}'
    path.write_text(json.dumps(config_of().to_json() | {"auto": json.loads(auto)}))
    assert read_config(path) == config_of()
    assert fixed_of(config_of())["auto"] == auto
    assert fixed_of(config_of(FED))["auto"] != auto


def test_other_sides_or_drops_are_refused_when_a_run_goes_on() -> None:
    usual, small = DEFAULT_COMPRESSION, config_of(size=96)
    for config, options in (
        (config_of(FED), FED),
        (config_of(FED), UNSAID),
        (config_of(FED), AutoOptions(patches="16,20,24,30")),
        (config_of(), AutoOptions(patches="16,20,24,30,40,48", drops="0,.25,.5,.75,.9")),
        (small, AutoOptions(patches="16,24,48")),
    ):
        refuse_another(config, BY_ITSELF, options, usual)
    for config, options, said in (
        (config_of(FED), AutoOptions(patches="16,24"), r"patches .*16, ?20.*, not .*16, ?24"),
        (config_of(FED), AutoOptions(drops="0,.5"), r"drops .*0\.75.*, not .*0\.5"),
        (config_of(), AutoOptions(patches="16,24"), r"patches .*40, ?48.*, not .*16, ?24"),
        (small, AutoOptions(patches="16,24"), r"patches .*16, ?24, ?48.*, not .*16, ?24"),
    ):
        with pytest.raises(UserError, match=f"started with .*auto.{said}"):
            refuse_another(config, BY_ITSELF, options, usual)


def test_a_run_measures_what_it_was_given_and_nothing_else(shard_dir: Path, tmp_path: Path) -> None:
    """The estimate alone; what is in config.json decides when the run goes on."""
    run, auto = tmp_path / "run", Auto(1.0, (0.0,), (24,), (0.5,))
    config = config_on(shard_dir, size=48, batch=4, budget=12.0, schedule=BEFORE, auto=auto)
    train(start(config, run, CPU), run)
    (found,) = lines(run, "estimate")
    assert [(cell["p"], cell["drop"]) for cell in found["cells"]] == [(16, 0.0), (24, 0.5)]
    assert len(checkpoint.load(run).decisions[0]["cells"]) == 2
    with pytest.raises(UserError, match=r"auto .*24.*, now .*16"):
        resume(replace(config, auto=replace(auto, patches=(16,))), run, CPU)


def test_a_stage_that_the_loader_limits_is_told_with_the_options_that_leave_it_out() -> None:
    def told(p: int, drop: float, **options: Any) -> str:
        console = Console(record=True, width=500)
        with progress_bar(1.0, console, **options) as watch:
            watch({"kind": "loader_limits", "p": p, "drop": drop, "late": 0.9, "images_per_s": 1})
        return console.export_text()

    assert "--auto-patches" in told(48, 0.9, chooses=True)
    assert "--auto-patches" not in told(16, 0.0, chooses=True)
    assert "limits this stage" in told(48, 0.9) and "--auto-patches" not in told(48, 0.9)
