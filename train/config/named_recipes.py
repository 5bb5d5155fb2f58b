"""Recipes: whole runs as TOML files, with their data, cost and expected accuracy. No torch.

A file has the tables `settings` (over the defaults of settings.algo), `schedule` (stages) or
`auto`, and may have `about`, `data` and `expected`. The files in train/recipes come with the
package. `--recipe my.toml` reads a file of the user. Every run writes RUN/recipe.toml, a recipe
that repeats the run. Units follow the paper's formula (see cost.py).
"""

import json
import tomllib
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.train.config import auto, recipes
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.config import DEFAULT_COMPRESSION, OF_THE_MACHINE, TrainConfig
from accelssl.train.config.config_file import refuse_other_types
from accelssl.train.config.cost import Convention
from accelssl.train.config.schedule import Schedule, constant, from_json
from accelssl.train.methods import METHODS

SUFFIX = ".toml"
_TABLES = {"about", "data", "expected", "settings", "schedule", "auto"}
_REQUIRED = "algo", "model", "budget"
_SETTINGS = {setting.name for setting in fields(TrainConfig)} - {"data", "schedule", "auto"}


@dataclass(frozen=True)
class DataSet:
    """Data set that a recipe is made for: its name and its number of training images."""

    name: str
    images: int


class Source(StrEnum):
    """Source of the accuracies of a recipe."""

    PAPER = "paper"
    ORIGINAL = "original code"
    HERE = "measured here"
    NOBODY = "not measured"


@dataclass(frozen=True)
class Expected:
    """Accuracies in per cent by protocol (nn1, knn20, linear, finetune), reported by `source`.

    differs: the difference between that run and the recipe.
    """

    source: Source = Source.NOBODY
    accuracies: dict[str, float] = field(default_factory=dict)
    differs: str = ""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.1f}" for name, value in self.accuracies.items())
        where = f"{self.source}: {self.differs}" if self.differs else str(self.source)
        return f"{figures} ({where})" if figures else str(self.source)


@dataclass(frozen=True)
class Recipe:
    """Content of one recipe file. `name` is the value of `--recipe`."""

    name: str
    about: str
    data: DataSet | None
    expected: Expected
    settings: dict[str, Any]

    @property
    def command(self) -> str:
        return f"accelssl train --recipe {self.name} --data SHARDS --out RUN"

    def make(self, data: str, **options: Any) -> TrainConfig:
        """Return the configuration for the shard set at `data`; options override settings."""
        replaced = {"auto"} if "schedule" in options else set()
        chosen = {k: v for k, v in self.settings.items() if k not in replaced} | options
        model, budget, schedule, algo = (
            chosen.pop(name) for name in ("model", "budget", "schedule", "algo")
        )
        return recipes.usual(algo, model, data, budget, schedule, **chosen)


@cache
def shipped() -> dict[str, Recipe]:
    """Return the recipes of the package by name."""
    folder = files("accelssl.train") / "recipes"
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(SUFFIX))
    names = [name.removesuffix(SUFFIX) for name in found]
    return {name: _recipe(name, (folder / f"{name}{SUFFIX}").read_text()) for name in names}


def find(name: str) -> Recipe:
    """Return the recipe of the package with that name, or the one in the TOML file so named.

    Raise UserError for an unknown name and for a file that is no recipe.
    """
    if name.endswith(SUFFIX):
        try:
            text = Path(name).read_text()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UserError(
                f"The recipe {name} cannot be read: {reason}.",
                f"Name a readable {SUFFIX} file, or a recipe of `accelssl recipes`.",
            ) from None
        return _recipe(name, text)
    if name not in shipped():
        raise UserError(
            f"There is no recipe named {name!r}.",
            f"Use one of {', '.join(shipped())}, or a file that ends in {SUFFIX}.",
        )
    return shipped()[name]


def images_bought(config: TrainConfig) -> int:
    """Return the number of images that the budget pays for, over all stages."""
    stages = [(s.until, config.batch * config.sample_cost(s)) for s in config.schedule.stages]
    return config.batch * sum(steps_bought(config.budget, stages))


def recipe_text(config: TrainConfig) -> str:
    """Return the TOML of a recipe that repeats a run, whatever the machine."""
    left_out = {"data", "schedule", "auto", *OF_THE_MACHINE}
    content = config.to_json()
    settings = {name: value for name, value in content.items() if name not in left_out}
    lines = ["# Repeat this run: accelssl train --recipe recipe.toml --data SHARDS --out RUN", ""]
    lines += _table("[settings]", settings)
    if config.auto:
        lines += _table("[auto]", content["auto"])
    else:
        for stage in config.schedule.to_json():
            lines += _table("[[schedule]]", stage)
    return "\n".join(lines)


def _table(head: str, values: dict[str, Any]) -> list[str]:
    """Return the lines of a TOML table. Leave out None, because TOML has no null.

    The other values are written as JSON, which is also valid TOML.
    """
    pairs = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
    return [head, *pairs, ""]


def _recipe(name: str, text: str) -> Recipe:
    """Read one recipe. Raise UserError, which names it, for unknown keys and unfit values."""
    try:
        content = tomllib.loads(text)
        _refuse_unknown(name, "table", content, _TABLES)
        settings = content.get("settings", {})
        _refuse_unknown(name, "setting", settings, _SETTINGS)
        for needed in _REQUIRED:
            if needed not in settings:
                raise ValueError(f"settings.{needed} is missing")
        if settings["algo"] not in METHODS:
            raise ValueError(f"settings.algo is not one of {', '.join(METHODS)}")
        if "convention" in settings:
            settings["convention"] = Convention(settings["convention"])
        refuse_other_types(Path(name), settings)
        if "keep_at" in settings:
            settings["keep_at"] = tuple(settings["keep_at"])
        settings |= _compression(name, content)
        return Recipe(
            name,
            content.get("about", "").strip(),
            DataSet(**content["data"]) if "data" in content else None,
            _expected(content.get("expected", {})),
            settings,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{name} is not a recipe: {error}.",
            "Write it like RUN/recipe.toml, which every run leaves in its folder.",
        ) from None


def _compression(name: str, content: dict[str, Any]) -> dict[str, Any]:
    if "auto" in content:
        if "schedule" in content:
            raise ValueError("it has both a schedule and auto")
        return {"schedule": auto.BEFORE, "auto": auto.from_json(content["auto"])}
    if "schedule" not in content:
        return {"schedule": constant(DEFAULT_COMPRESSION)}
    schedule: Schedule = from_json(content["schedule"])
    if len(schedule.stages) > 1:
        schedule = replace(schedule, origin=f"the recipe {name}")
    return {"schedule": schedule}


def _expected(table: dict[str, Any]) -> Expected:
    return Expected(
        Source(table.get("source", Source.NOBODY)),
        table.get("accuracies", {}),
        table.get("differs", ""),
    )


def _refuse_unknown(name: str, kind: str, given: dict[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise UserError(
                f"{name} has an unknown {kind}: {key}.", f"Use {', '.join(sorted(known))}."
            )
