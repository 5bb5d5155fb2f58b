"""The commands about what runs begin with and what they leave. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
    app.command("report", epilog="Example: accelssl report run")(report)
    app.command("recipes", epilog="Example: accelssl recipes moco_in100")(recipes)
    app.command("export", epilog="Example: accelssl export run vit.safetensors")(export)


def report(run: Run) -> None:
    """Write the report of a run: RUN/report.html."""
    from accelssl.train.report.report import write_report

    print(write_report(run))


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="One of them, whole [all].", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recipes of train --recipe: whole runs, what they cost and what they should reach."""
    from accelssl.train.config.recipe_pages import recipes_text

    print(recipes_text(name, as_json=as_json))


def export(
    run: Run,
    file: Annotated[
        Path, typer.Argument(help="To write, ending in .safetensors.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write the trained encoder as a file that timm loads, and print the line that does it.

    It is the encoder that is evaluated: SimCLR's, the query's of MoCo-v3, the teacher of DINO. The
    file holds timm's own weights without a classifier, and in its metadata the model, the method,
    the budget spent and the mean and standard deviation of the colours it takes.
    """
    from accelssl.train.export import export_encoder

    print(export_encoder(run, file, replaces=force))
