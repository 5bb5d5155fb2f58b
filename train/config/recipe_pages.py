"""Output of `accelssl recipes`: a table of all recipes, a page about one recipe, or JSON."""

import json
from typing import Any

from accelssl.train.config.budget import format_units
from accelssl.train.config.config import OF_THE_MACHINE, TrainConfig
from accelssl.train.config.named_recipes import Recipe, find, images_bought, shipped

PLACEHOLDER = "SHARDS"
_HEADER = ("recipe", "method", "model", "data", "budget", "units/image", "images", "expected")


def recipes_text(name: str | None, *, as_json: bool) -> str:
    """Return the text about all recipes or a named one. Raise UserError for an unknown name."""
    if name is not None:
        found = find(name)
        return json.dumps(facts(found)) if as_json else _page(found)
    if as_json:
        return json.dumps([facts(recipe) for recipe in shipped().values()])
    return _table()


def facts(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a JSON object, with accuracies in per cent.

    "images" is the number of images that the budget pays for.
    """
    config = recipe.make(PLACEHOLDER)
    images = images_bought(config)
    return {
        "name": recipe.name,
        "about": recipe.about,
        "command": recipe.command,
        "data": recipe.data.name if recipe.data else None,
        "budget": config.budget,
        "images": images,
        "epochs": images / recipe.data.images if recipe.data else None,
        "steps": images // config.batch,
        "expected": recipe.expected.accuracies,
        "source": recipe.expected.source,
        "differs": recipe.expected.differs,
        "config": _settings(config),
    }


def _table() -> str:
    rows = [_HEADER, *(_row(recipe) for recipe in shipped().values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(recipe: Recipe) -> tuple[str, ...]:
    config = recipe.make(PLACEHOLDER)
    images = images_bought(config)
    return (
        recipe.name,
        config.method.label,
        config.model,
        recipe.data.name if recipe.data else "",
        format_units(config.budget),
        f"{config.budget / images:.2f}",
        format_units(images),
        str(recipe.expected),
    )


def _page(recipe: Recipe) -> str:
    config = recipe.make(PLACEHOLDER)
    images = images_bought(config)
    stages = ", then ".join(
        f"{stage.compression} at {config.sample_cost(stage):.2f} units an image"
        for stage in config.schedule.stages
    )
    return "\n".join(
        [
            f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name,
            "",
            *(
                [f"data      {recipe.data.name}, {recipe.data.images:,} images"]
                if recipe.data
                else []
            ),
            f"budget    {format_units(config.budget)} units: {stages}",
            f"buys      {format_units(images)} images, {_epochs(recipe, images)}"
            f"{images // config.batch:,} steps of {config.batch}",
            f"expected  {recipe.expected}",
            f"command   {recipe.command}",
            "",
            json.dumps(_settings(config), indent=1),
        ]
    )


def _data(recipe: Recipe) -> str:
    data = recipe.data
    return f"{data.name}, {data.images:,} images" if data else "not stated by the recipe"


def _epochs(recipe: Recipe, images: int) -> str:
    return f"{images / recipe.data.images:,.0f} epochs, " if recipe.data else ""


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of the run without the settings that depend on the machine."""
    settings = config.to_json()
    return {name: settings[name] for name in settings if name not in OF_THE_MACHINE}
