"""Recipes are complete runs: each builds, pays for what it says, and says who measured what."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.train.checkpoints.resuming import _FREE
from accelssl.train.config.auto import BEFORE, Auto
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.config.named_recipes import (
    Recipe,
    Source,
    find,
    images_bought,
    recipe_text,
    shipped,
)
from accelssl.train.config.new_config import new_config
from accelssl.train.config.recipe_pages import recipes_text
from accelssl.train.config.schedule import constant
from accelssl.train.methods import METHODS
from accelssl.train.objective import build

VIT_TINY = "vit_tiny_patch16_224"
P30_HALVED = constant(Compression(30, 0.5))
NAMED = shipped()
IN1K_IMAGES = 1_281_167


def run(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    sys.argv = ["accelssl", *words.split()]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    code = stopped.value.code
    printed = capsys.readouterr()
    return (code if isinstance(code, int) else 0), printed.out, printed.err


@pytest.mark.parametrize("name", NAMED)
def test_a_recipe_builds_with_another_model(name: str) -> None:
    config = find(name).make("shards", model=VIT_TINY, prototypes=64)
    assert (config.model, config.data) == (VIT_TINY, "shards")
    assert sum(weights.numel() for weights in build(config).evaluated.parameters()) > 5e6


@pytest.mark.parametrize("name", NAMED)
def test_the_budget_of_a_recipe_buys_the_images_it_says(name: str) -> None:
    config = find(name).make("shards")
    ends = [0.0, *(stage.until for stage in config.schedule.stages)]
    shares = [end - begin for begin, end in pairwise(ends)]
    costs = [config.sample_cost(stage) for stage in config.schedule.stages]
    images = sum(share * config.budget / cost for share, cost in zip(shares, costs, strict=True))
    assert images_bought(config) >= config.batch  # one step at least
    assert images <= images_bought(config) <= images + len(costs) * config.batch


@pytest.mark.parametrize(("name", "images"), [("simclr_small", 1_020_928), ("simclr_demo", 15_008)])
def test_measured_recipes_buy_the_images_that_were_counted(name: str, images: int) -> None:
    """As benchmarks/results has them."""
    assert images_bought(find(name).make("shards")) == images


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("moco_in100", (3 * 32 + 64) / 196),
        ("moco_in100_p30", 4 * 64 / 196),
        ("moco_in100_uncompressed", 4),
        ("moco_in1k", (3 * 32 + 64) / 196),
        ("moco_in1k_original", 8),
        ("simclr_in100", 6 * 32 / 196),
        ("simclr_in1k", 6 * 32 / 196),
        ("simclr_in1k_original", 6),
        ("dino_in1k", (3 * 32 + 64 + 3 * 6 * 36) / 196),
        ("dino_in1k_original", (6 * 196 + 2 * 196 + 3 * 10 * 36) / 196),
    ],
)
def test_an_image_costs_what_the_papers_formula_says(name: str, units: float) -> None:
    config = find(name).make("shards")
    (stage,) = config.schedule.stages
    assert config.sample_cost(stage) == pytest.approx(units)


@pytest.mark.parametrize(
    ("name", "epochs"),
    [("moco_in1k_original", 300), ("simclr_in1k_original", 300), ("dino_in1k_original", 400)],
)
def test_the_originals_run_for_the_epochs_of_their_authors(name: str, epochs: int) -> None:
    assert images_bought(find(name).make("shards")) == pytest.approx(epochs * IN1K_IMAGES, rel=1e-4)


def test_recipes_for_imagenet_100_have_the_papers_batch_rate_and_warm_up() -> None:
    for name in (name for name in NAMED if name.startswith("moco_in100")):
        config = find(name).make("shards")
        assert (config.batch, config.peak_lr) == (512, 1e-3)
        assert config.warmup == 40 / 1000 and config.temperature == 0.2


def test_a_quarter_of_the_papers_moco_budget_is_a_quarter_of_600_epochs() -> None:
    """The paper counts 6168M for 600 epochs, twice its formula, and 1542M for its own run."""
    config = find("moco_in1k").make("shards")
    assert config.budget / (600 * IN1K_IMAGES * 4) == pytest.approx(1542 / 6168, rel=0.01)


@pytest.mark.parametrize("recipe", NAMED.values(), ids=list(NAMED))
def test_what_is_expected_names_its_source(recipe: Recipe) -> None:
    expected = recipe.expected
    assert (expected.source is Source.NOBODY) == (not expected.accuracies)
    assert set(expected.accuracies) <= {"nn1", "knn20", "linear", "finetune"}
    assert all(0 < value < 100 for value in expected.accuracies.values())
    assert recipe.about.count("\n") < 8 and recipe.about.split("\n")[0].endswith(".")


def test_every_method_has_a_recipe_of_its_authors_and_one_for_few_images() -> None:
    for algo in METHODS:
        assert find(f"{algo}_small").make("shards").algo == algo
        assert find(f"{algo}_in1k_original").make("shards").algo == algo


@pytest.mark.parametrize("name", NAMED)
def test_a_run_of_a_recipe_is_repeated_by_the_recipe_that_it_writes(
    name: str, tmp_path: Path
) -> None:
    config = find(name).make("shards", seed=3, keep_at=(0.5,))
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text(config))
    assert find(str(path)).make("shards") == config


def test_a_run_that_chooses_its_compressions_is_repeated_too(tmp_path: Path) -> None:
    chooses = {"auto": Auto(0.03, (0.0, 0.5), (16, 30), (0.0, 0.5)), "schedule": BEFORE}
    config = find("moco_small").make("shards", **chooses)
    assert config.auto == chooses["auto"]
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text(config))
    assert find(str(path)).make("shards") == config
    assert find(str(path)).make("shards", schedule=P30_HALVED).auto is None


@pytest.mark.parametrize("chosen", [{"small": True, "named": None}, {"small": False}])
def test_schedule_auto_wins_over_the_schedule_of_a_recipe(chosen: dict[str, Any]) -> None:
    asked = {"named": find("moco_small")} | chosen
    config = new_config(
        algo="moco",
        data="shards",
        compression=(None, None, "auto"),
        options={"budget": 1e6},
        **asked,
    )
    assert config.auto == Auto() and config.head_hidden == 2048


FILE = """
[settings]
algo = "moco"
model = "vit_tiny_patch16_224"
budget = 1e4
"""


def test_a_recipe_of_ones_own_needs_method_model_and_budget_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    config = find(str(path)).make("shards")
    assert (config.algo, config.budget, config.schedule) == ("moco", 1e4, P30_HALVED)
    assert config.temperature == 0.2  # of the method
    assert str(path) in recipes_text(str(path), as_json=False)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (FILE + "batchsize = 5", "batchsize"),
        (FILE + "[extra]", "extra"),
        (FILE + 'batch = "many"', "batch"),
        (FILE.replace("moco", "byol9"), "simclr"),
        (FILE.replace("budget", "# budget"), "budget is missing"),
        ("[settings", "not a recipe"),
        (FILE + "[[schedule]]\nuntil = 0.5\np = 30\ndrop = 0.5", "end at"),
        (FILE + "[expected]\nsource = 'hearsay'", "hearsay"),
        (FILE + "[auto]\n[[schedule]]\nuntil = 1.0\np = 30\ndrop = 0.5", "both"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_by_what_is_wrong(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        find(str(path))
    assert named in f"{refused.value.what} {refused.value.remedy}"


def test_a_recipe_file_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml cannot be read"):
        find("nowhere.toml")


def test_options_win_over_the_recipe() -> None:
    options = {"budget": 2e6, "batch": 64, "momentum": 0.5, "schedule": P30_HALVED, "seed": 4}
    config = find("moco_in100_p30").make("shards", **options)
    assert {name: getattr(config, name) for name in options} == options
    assert config.base_lr == 5e-4


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="moco_in200") as refused:
        find("moco_in200")
    assert "moco_in100" in refused.value.remedy


def test_the_table_has_a_line_for_every_recipe_with_cost_and_source() -> None:
    header, *rows = recipes_text(None, as_json=False).splitlines()
    assert [row.split()[0] for row in rows] == list(NAMED)
    cut = header.index("expected")
    for row, recipe in zip(rows, NAMED.values(), strict=True):
        assert recipe.expected.source in row[cut:]
    in100 = next(row for row in rows if row.startswith("moco_in100 "))
    assert "104M" in in100 and "0.82" in in100 and "127M" in in100


def test_a_recipe_by_name_is_printed_whole_but_for_what_suits_the_machine() -> None:
    text = recipes_text("moco_in100", as_json=False)
    recipe = find("moco_in100")
    assert recipe.about in text and "--recipe moco_in100" in text and "82.5" in text
    config = json.loads(text[text.index("\n{") :])
    whole = json.loads(json.dumps(recipe.make("SHARDS").to_json()))
    assert config.items() <= whole.items()
    left_out = whole.keys() - config.keys()
    assert {"precision", "threads"} < left_out and left_out < _FREE


def test_json_has_the_same(tmp_path: Path) -> None:
    everything = json.loads(recipes_text(None, as_json=True))
    one = json.loads(recipes_text("simclr_in1k", as_json=True))
    assert [found["name"] for found in everything] == list(NAMED) and one in everything
    assert one["expected"]["linear"] == 68.4 and one["source"] == "paper"
    (tmp_path / "config.json").write_text(json.dumps(one["config"]))
    assert read_config(tmp_path / "config.json") == find("simclr_in1k").make("SHARDS")


def test_listing_recipes_loads_neither_torch_nor_timm() -> None:
    code = (
        "import sys\nsys.argv = ['accelssl', 'recipes']\nfrom accelssl.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'timm', 'matplotlib', 'PIL'} & set(sys.modules)\nassert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "moco_in100" in shown.stdout


def trained(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, folder: Path, words: str
) -> TrainConfig:
    small = "--budget 20 --batch 8 --head-hidden 16 --no-baseline --threads 1 --device cpu"
    code, _, err = run(
        capsys, f"train --data {shard_dir} --out {folder} --model {VIT_TINY} {small} {words}"
    )
    assert code == 0, err
    return read_config(folder / "config.json")


def test_the_command_trains_a_recipe_with_overrides(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    config = trained(capsys, shard_dir, tmp_path / "run", "--recipe moco_in100_p30 --patch 48")
    assert (config.algo, config.base_lr, config.warmup) == ("moco", 5e-4, 0.04)
    assert config.schedule == constant(Compression(48, 0.0))  # the recipe's drop
    code, _, err = run(capsys, f"train --out {tmp_path / 'run'} --resume --recipe moco_in100")
    assert code == 2 and "--recipe" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--recipe moco_in100 --algo simclr", "--algo"),
        ("--recipe moco_in100 --small", "--small"),
        ("--recipe simclr_in100 --momentum 0.9", "--momentum"),
        ("--recipe simclr_in200", "simclr_in200"),
        ("--recipe simclr_in100 --budget 5", "budget of 5"),
    ],
)
def test_what_contradicts_a_recipe_is_refused(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path, words: str, named: str
) -> None:
    code, _, err = run(capsys, f"train --data {shard_dir} --out {tmp_path / 'run'} {words}")
    assert code == 2 and named in err and not (tmp_path / "run").exists()


def test_a_recipe_without_a_shard_set_asks_for_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, f"train --out {tmp_path / 'run'} --recipe moco_in100")
    assert code == 2 and "--data" in err
