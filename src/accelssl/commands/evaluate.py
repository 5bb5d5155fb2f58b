"""The command that judges what was trained. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

from accelssl.grouped_help import GroupedHelp

SUBJECT = "What is judged, and on what"
CLASSIFIERS = "Linear classifiers and fine-tuning"


def add_to(app: typer.Typer) -> None:
    """Make it a command of the application."""
    example = "Example: accelssl evaluate run --protocol linear"
    app.command("evaluate", cls=GroupedHelp, epilog=example)(evaluate)


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a run; or see --checkpoint.")
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="nn: nearest neighbours (nn1, knn20); linear: a classifier on frozen features; "
            "finetune: all weights trained with labels."
        ),
    ] = "nn",
    no_untrained: Annotated[
        bool,
        typer.Option(
            "--no-untrained", help="Leave out the network before training: half the time."
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Shard set [the run's own].", rich_help_panel=SUBJECT)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Instead of a run: weights of a timm model in a file, or timm:NAME.",
            rich_help_panel=SUBJECT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="timm's name for --checkpoint [as the file says].", rich_help_panel=SUBJECT
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="linear: moco, dino or mae [moco]; finetune: deit or mae [deit].",
            rich_help_panel=CLASSIFIERS,
        ),
    ] = None,
    crops: Annotated[
        str | None,
        typer.Option(
            help="linear: central crops, their features computed once: minutes; a number of random "
            "crops, once; or fresh, new ones in every epoch as published: hours [central].",
            rich_help_panel=CLASSIFIERS,
        ),
    ] = None,
    lrs: Annotated[
        str | None,
        typer.Option(
            "--lrs",
            "--lr",
            help="Learning rates for 256 images, as 0.1,1,10: linear tries all of them in one pass "
            "and says the best and each [six or seven about the preset's]; finetune takes one.",
            rich_help_panel=CLASSIFIERS,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="[The preset's.]", rich_help_panel=CLASSIFIERS)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Images in a step [1024].", rich_help_panel=CLASSIFIERS)
    ] = None,
    lp_bn: Annotated[
        bool | None,
        typer.Option(
            "--lp-bn",
            help="linear: normalise features over a batch: --preset mae.",
            rich_help_panel=CLASSIFIERS,
        ),
    ] = None,
    reset_last_norm: Annotated[
        bool | None,
        typer.Option(
            "--reset-last-norm",
            help="linear: scale 1, shift 0 in the network's last norm, whose scale SimCLR's head "
            "lets grow.",
            rich_help_panel=CLASSIFIERS,
        ),
    ] = None,
) -> None:
    """Accuracy of a run's network, or of a file of weights, on the val split of a shard set.

    Beside it stands the same network before training, and for nearest neighbours the raw pixels.
    Results of a run are kept side by side in RUN/evaluation.json, by protocol, settings and shard
    set; one found again with the same replaces the older.
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
