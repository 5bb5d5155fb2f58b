"""The command that evaluates a trained network. Heavy imports wait."""

from pathlib import Path
from typing import Annotated, Any

import typer

from accelssl.grouped_help import GroupedHelp


def _subject(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Network and images", **settings)


def _classifier(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Linear classifiers and fine-tuning", **settings)


Run = Annotated[Path | None, typer.Argument(help="Folder of a run; or use --checkpoint.")]
Protocol = Annotated[
    str,
    typer.Option(
        help="nn: nearest neighbours (nn1, knn20); linear: a classifier on frozen features; "
        "finetune: all weights trained with labels."
    ),
]
NoUntrained = Annotated[
    bool,
    typer.Option("--no-untrained", help="Skip the network before training; halves the time."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Data = Annotated[str | None, _subject(help="Shard set [the run's own].")]
Checkpoint = Annotated[
    str | None,
    _subject(help="Instead of a run: a file with weights of a timm model, or timm:NAME."),
]
Model = Annotated[str | None, _subject(help="timm's name for --checkpoint [as the file states].")]
Preset = Annotated[
    str | None,
    _classifier(help="linear: moco, dino or mae [moco]; finetune: deit or mae [deit]."),
]
Crops = Annotated[
    str | None,
    _classifier(
        help="linear: central crops, features computed once (minutes); a number of random crops "
        "per image, computed once; or fresh, new crops in every epoch as published (hours) "
        "[central]."
    ),
]
Rates = Annotated[
    str | None,
    _classifier(
        "--lrs",
        "--lr",
        help="Learning rates per 256 images, as 0.1,1,10. linear trains one classifier for each "
        "and prints all accuracies [six or seven around the preset's]; finetune takes one.",
    ),
]
Epochs = Annotated[int | None, _classifier(help="[the preset's]")]
Batch = Annotated[int | None, _classifier(help="Images in a step [1024].")]
BatchNorm = Annotated[
    bool | None,
    _classifier("--lp-bn", help="linear: batch norm before the classifier; same as --preset mae."),
]
ResetLastNorm = Annotated[
    bool | None,
    _classifier(
        "--reset-last-norm",
        help="linear: set the network's last norm to scale 1, shift 0. SimCLR's head lets the "
        "scale grow.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    example = "Example: accelssl evaluate run --protocol linear"
    app.command("evaluate", cls=GroupedHelp, epilog=example)(evaluate)


def evaluate(
    run: Run = None,
    protocol: Protocol = "nn",
    no_untrained: NoUntrained = False,
    device: Device = "auto",
    as_json: Json = False,
    data: Data = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    preset: Preset = None,
    crops: Crops = None,
    lrs: Rates = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lp_bn: BatchNorm = None,
    reset_last_norm: ResetLastNorm = None,
) -> None:
    """Measure the accuracy of a run or of a file of weights on the val split of a shard set.

    The same network before training is the reference, and for nearest neighbours also the raw
    pixels. Results of a run are kept in RUN/evaluation.json by protocol, settings and shard set. A
    new result replaces an older one with the same settings.
    """
    from accelssl.train.evaluate.command import EvaluateOptions, evaluate_command

    options = EvaluateOptions(
        preset=preset,
        normalises=lp_bn,
        rates=lrs,
        crops=crops,
        epochs=epochs,
        batch=batch,
        resets_last_norm=reset_last_norm,
        compares=False if no_untrained else None,
    )
    text = evaluate_command(run, checkpoint, model, data, protocol, options, device, as_json)
    if text:
        print(text)
