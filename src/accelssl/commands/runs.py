"""The commands for recipes, reports and exports of runs. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("report", epilog="Example: accelssl report run")(report)
    app.command("recipes", epilog="Example: accelssl recipes moco_in100")(recipes)
    app.command("export", epilog="Example: accelssl export run vit.safetensors")(export)


def report(run: Run) -> None:
    """Write the report of a run: RUN/report.html."""
    from accelssl.train.report.report import write_report

    print(write_report(run))


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe to print in full [list all].", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recipes of train --recipe: settings, cost and expected accuracy of whole runs."""
    from accelssl.train.config.recipe_pages import recipes_text

    print(recipes_text(name, as_json=as_json))


def export(
    run: Run,
    file: Annotated[
        Path, typer.Argument(help="File to write, ending in .safetensors.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write the trained encoder as a file for timm, and print the line that loads the file.

    This is the encoder that `evaluate` uses: SimCLR's encoder, MoCo-v3's query encoder, DINO's
    teacher. The file holds timm's weights without a classifier. Its metadata name the model, the
    method, the budget spent, and the mean and standard deviation of the input colours.
    """
    from accelssl.train.export import export_encoder

    print(export_encoder(run, file, replaces=force))
