"""What makes no sense is refused in words about the options there are, and edited files too."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.pipeline.compression import PATCH_SIDES, Compression
from accelssl.train.config import recipes
from accelssl.train.config.auto import BEFORE, Auto
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.default_schedules import default_schedule
from accelssl.train.config.schedule import Schedule, Stage, constant, read_schedule

P30 = constant(Compression(30, 0.5))


@pytest.fixture
def config() -> TrainConfig:
    return recipes.dino("vit_tiny_patch16_224", "shards", 1e6, P30)


@pytest.mark.parametrize("size", [96, 100, 97, 20])
@pytest.mark.parametrize("p", [16, 30, 48])
def test_a_size_without_a_grid_names_patches_and_sizes_that_have_one(size: int, p: int) -> None:
    def made(size: int, p: int) -> TrainConfig:
        schedule = constant(Compression(p, 0.0))
        return recipes.simclr("vit_tiny_patch16_224", "shards", 1e6, schedule, size=size)

    if size % p == 0:
        return
    with pytest.raises(UserError, match=f"{size} px .* into {p} px patches") as refused:
        made(size, p)
    assert ("the default of --patch" in refused.value.what) == (p == 30)
    patches, _, sizes = refused.value.remedy.rpartition("--size ")
    found = [int(word) for word in patches.replace(",", "").split() if word.isdigit()]
    assert found == [side for side in PATCH_SIDES if size % side == 0]
    assert all(made(size, side) for side in found)
    assert all(made(int(word), p) for word in sizes.strip(".").split(" or "))


def test_several_stages_are_told_a_size_that_fits_all() -> None:
    stages = Schedule((Stage(0.5, Compression(40, 0.5)), Stage(1.0, Compression(16, 0.5))))
    with pytest.raises(UserError, match="into 40 px patches") as refused:
        recipes.simclr("vit_tiny_patch16_224", "shards", 1e6, stages, size=224)
    assert refused.value.remedy == "Use --size 160 or 240."


STAGES = [{"until": 0.5, "p": 40, "drop": 0.5}, {"until": 1.0, "p": 16, "drop": 0.9}]


def of_a_file(folder: Path, stages: Any = STAGES) -> Schedule:
    path = folder / "stages.json"
    path.write_text(json.dumps(stages))
    return read_schedule(path)


def simclr_of(schedule: Schedule, size: int, **options: Any) -> TrainConfig:
    return recipes.simclr("vit_tiny_patch16_224", "shards", 1e9, schedule, size=size, **options)


@pytest.mark.parametrize("size", [96, 100, 224])
@pytest.mark.parametrize("kind", ["default", "file", "auto"])
def test_a_schedule_that_does_not_fit_is_named_with_sizes_and_patches_that_do(
    kind: str, size: int, tmp_path: Path
) -> None:
    schedule = {"default": default_schedule("simclr"), "auto": BEFORE}.get(kind)
    schedule = schedule or of_a_file(tmp_path)
    whose = {
        "default": "the default schedule of simclr (--schedule default)",
        "file": f"the schedule {tmp_path / 'stages.json'}",
        "auto": "",
    }[kind]
    auto = Auto() if kind == "auto" else None
    if all(size % stage.compression.p == 0 for stage in schedule.stages):
        assert simclr_of(schedule, size, auto=auto).size == size
        return
    with pytest.raises(UserError, match=rf"{size} px .* px patches, (which|and) ") as refused:
        simclr_of(schedule, size, auto=auto)
    if kind == "auto":
        assert "into 16 px patches, and --schedule auto compares " in refused.value.what
        assert "the uncompressed network" in refused.value.what
    else:
        assert f", which {whose} has." in refused.value.what
    said = re.fullmatch(
        r"Use --size ([\d or]+), or in the place of that schedule --patch ([\d or]+), or a file "
        r"with such patches alone\.",
        refused.value.remedy,
    )
    assert said
    sizes, sides = ([int(each) for each in found.split(" or ")] for found in said.groups())
    assert all(simclr_of(schedule, each, auto=auto).size == each for each in sizes)
    assert sides == [side for side in PATCH_SIDES if size % side == 0]
    assert all(simclr_of(constant(Compression(side, 0.0)), size) for side in sides)


def test_a_schedule_that_leaves_nothing_of_a_crop_is_named(tmp_path: Path) -> None:
    stages = of_a_file(tmp_path, [{"until": 1.0, "p": 48, "drop": 0.9}])
    with pytest.raises(UserError, match=r"leaves none .*, in the schedule .*stages\.json\."):
        simclr_of(stages, 96)
    with pytest.raises(UserError, match=r"leaves none of the 4 patches \(p = 48, 96 px\)\."):
        simclr_of(constant(Compression(48, 0.9)), 96)


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ([{"until": 1.0, "p": 32, "drop": 0.5}], "patch side 32 is not supported."),
        ([{"until": 1.0, "p": 16, "drop": 1}], "drop 1.0 is not a fraction that keeps patches."),
        ([{"until": 0.9, "p": 16, "drop": 0}], "the stages of the schedule end at [0.9]."),
        ({"steps": 3}, "the schedule is not a list of stages."),
    ],
)
def test_what_is_wrong_in_a_schedule_is_said_to_be_in_its_file(
    stages: Any, what: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        of_a_file(tmp_path, stages)
    assert refused.value.what == f"In {tmp_path / 'stages.json'}: {what}"


@pytest.mark.parametrize("p", [16, 24, 30])
def test_crops_as_small_as_dinos_small_ones_name_a_size_that_works(p: int) -> None:
    schedule = constant(Compression(p, 0.0))
    with pytest.raises(UserError, match=r"--size.*small crops of 96 px") as refused:
        recipes.dino("vit_tiny_patch16_224", "shards", 1e6, schedule, size=96)
    words = refused.value.remedy.split()
    size = int(words[words.index("--size") + 1])
    assert 96 < size <= 96 + p and "--local-crops 0" in refused.value.remedy
    assert recipes.dino("vit_tiny_patch16_224", "shards", 1e6, schedule, size=size).n_local == 6


def test_a_remedy_is_the_methods_own(config: TrainConfig) -> None:
    for algo, best in (("moco", "best 0.99."), ("dino", "best 0.996.")):
        make = {"moco": recipes.moco, "dino": recipes.dino}[algo]
        with pytest.raises(UserError, match=best):
            make("vit_tiny_patch16_224", "shards", 1e6, P30, momentum=2.0)
    with pytest.raises(UserError, match=r"--threads -2 .* or 0 for all cores"):
        replace(config, threads=-2)


def test_a_head_without_an_output_is_refused(config: TrainConfig) -> None:
    with pytest.raises(UserError, match="head_out 0"):
        replace(config, head_out=0)


def written(config: TrainConfig, folder: Path, **changes: Any) -> Path:
    """A config.json that somebody has edited."""
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_json() | changes))
    return path


def test_every_setting_of_a_run_reads_back_as_its_type(config: TrainConfig, tmp_path: Path) -> None:
    changed = replace(config, keep_at=(0.0, 0.5), readers=3, final_weight_decay=None)
    assert read_config(written(changed, tmp_path)) == changed
    assert read_config(written(config, tmp_path, budget=1000000)).budget == 1e6  # a whole number


@pytest.mark.parametrize("text", ["[1]", "null", '"auto"', "3", "{}", ""])
def test_a_file_that_holds_no_settings_is_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is not the configuration of a run"):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("n_local", 2.0, "a whole number"),
        ("n_local", True, "a whole number"),
        ("prototypes", 64.0, "a whole number"),
        ("readers", 1.5, "a whole number or null"),
        ("prefetch", 2.5, "a whole number"),
        ("batch", "8", "a whole number"),
        ("data", 5, "a text"),
        ("data", None, "a text"),
        ("symmetric", 0, "true or false"),
        ("budget", math.inf, "a finite number"),
        ("temperature", "0.1", "a finite number"),
        ("final_weight_decay", math.nan, "a finite number or null"),
        ("keep_at", "abc", "a list of numbers"),
        ("keep_at", 5, "a list of numbers"),
        ("keep_at", ["a"], "a list of numbers"),
    ],
)
def test_an_edited_field_of_another_type_is_named(
    config: TrainConfig, tmp_path: Path, name: str, value: Any, kind: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_config(written(config, tmp_path, **{name: value}))
    assert refused.value.what.startswith(f"{name} is {json.dumps(value)} in ")
    assert refused.value.what.endswith(f"it must be {kind}.") and "Set it back" in str(
        refused.value
    )


def test_a_share_to_keep_that_is_never_reached_is_refused(
    config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="--keep-at 2 "):
        read_config(written(config, tmp_path, keep_at=[0.5, 2.0]))


def test_a_patch_that_is_no_whole_number_is_not_rounded(
    config: TrainConfig, tmp_path: Path
) -> None:
    stage = {"until": 1.0, "p": 30.5, "drop": 0.5}
    with pytest.raises(UserError, match=r"30\.5.* is none"):
        read_config(written(config, tmp_path, schedule=[stage]))
