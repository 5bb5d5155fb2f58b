"""Options that say what a run is, for the commands that train it and that reckon with it."""

from typing import Annotated

import typer

from accelssl.train.methods import METHODS

_METHODS = " or ".join(", ".join(METHODS).rsplit(", ", 1))

Recipe = Annotated[
    str | None, typer.Option(help="A whole run to begin with: accelssl recipes lists them.")
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
        help="Instead of --patch and --drop: a JSON list of stages; the method's default; or "
        "chosen in the run, by its gradient errors.",
    ),
]
KnownSchedule = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|default",
        help="Instead of --patch and --drop: a JSON list of stages, or the method's default.",
    ),
]
Small = Annotated[
    bool,
    typer.Option(
        "--small",
        help="Settings for thousands, not millions, of images: smaller head; larger rate, no "
        "extreme crops (dino: other keys); see accelssl recipes simclr_small.",
    ),
]
