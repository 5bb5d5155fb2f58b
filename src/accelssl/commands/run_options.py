"""Options that define a run, shared by the commands `train` and `plan`."""

from typing import Annotated

import typer

from accelssl.train.methods import METHODS

_METHODS = " or ".join(", ".join(METHODS).rsplit(", ", 1))

Recipe = Annotated[
    str | None,
    typer.Option(help="Start from a recipe: a name that accelssl recipes lists, or a .toml file."),
]
Algo = Annotated[str | None, typer.Option(help=f"Method: {_METHODS} [simclr].")]
Model = Annotated[str | None, typer.Option(help="timm VisionTransformer [vit_base_patch16_224].")]
Patch = Annotated[
    int | None, typer.Option(help="Patch side in pixels: 16, 20, 24, 30, 40 or 48 [30].")
]
Drop = Annotated[float | None, typer.Option(help="Fraction of patches dropped [0.5].")]
ScheduleChoice = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|default|auto",
        help="Instead of --patch and --drop: a JSON file of stages, default (the method's), or "
        "auto (chosen during the run from gradient errors).",
    ),
]
KnownSchedule = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|default",
        help="Instead of --patch and --drop: a JSON file of stages, or default (the method's).",
    ),
]
Small = Annotated[
    bool,
    typer.Option(
        "--small",
        help="Settings for thousands of images: smaller head, larger learning rate, larger minimum "
        "crops. List the settings with: accelssl recipes simclr_small.",
    ),
]
