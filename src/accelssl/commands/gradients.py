"""The commands that measure gradient errors and make a schedule of them. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    Path, typer.Argument(help="What analyze-gradients has written.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
    example = "Example: accelssl "
    app.command("analyze-gradients", epilog=example + "analyze-gradients run --out camse.json")(
        analyze_gradients
    )
    app.command("plot", epilog=example + "plot camse.json")(plot)
    app.command(
        "schedule", epilog=example + "schedule camse.json --budget 104M --out schedule.json"
    )(schedule)


def analyze_gradients(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run; its --size divisible by 16, for the uncompressed network.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("camse.json"),
    checkpoints: Annotated[
        str, typer.Option(help="Shares of the run's budget; train with --keep-at.")
    ] = "0,.25,.5,.75,1",
    data: Annotated[str | None, typer.Option(help="Shard set [the run's own].")] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            help="Patch sides of the grid [of 16,20,24,30,40,48 those that divide its crops]."
        ),
    ] = None,
    drops: Annotated[
        str | None,
        typer.Option(help="Drops of the grid [of 0,.25,.5,.75,.9 those that leave a patch]."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Images for each cell.")] = 16_384,
    subbatch: Annotated[
        int, typer.Option(help="Images a gradient: variance is that between sub-batches.")
    ] = 64,
    estimator: Annotated[
        str,
        typer.Option(help="Of the squared bias: paired is unbiased, plugin literally the paper's."),
    ] = "paired",
    negatives: Annotated[
        str,
        typer.Option(
            help="Of an image: subbatch, the others of it; or bank, not for dino: with fixed ones "
            "beside, as many as in the run's batch."
        ),
    ] = "subbatch",
    scope: Annotated[
        str, typer.Option(help="Gradients of all weights that are trained, or of the backbone.")
    ] = "all",
    step_units: Annotated[
        str | None,
        typer.Option(help="What a step costs, for CA-MSE [an uncompressed step of the run]."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of images, crops and drops [the run's, plus one].")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp32 or auto [the run's].")] = None,
    cells_at_once: Annotated[
        int | None, typer.Option(help="Whose sums are in memory [as many as fit].")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")
    ] = "auto",
) -> None:
    """Measure how far gradients of compressed views are from uncompressed ones, and how they vary.

    Squared bias, variance and cost-adjusted error (CA-MSE) of each compression, with intervals, at
    checkpoints of a run. The same command goes on where it was stopped; torchrun shares the work.
    """
    from accelssl.train.gradients.command import AnalysisOptions, analyze_gradients

    options = AnalysisOptions(
        checkpoints=checkpoints,
        sides=patches,
        drops=drops,
        samples=samples,
        subbatch=subbatch,
        estimator=estimator,
        negatives=negatives,
        scope=scope,
        step_units=step_units,
        seed=seed,
        precision=precision,
        cells_at_once=cells_at_once,
    )
    done = analyze_gradients(run, data, out, options, device)
    if done:
        print(done)


def plot(
    file: File,
    out: Annotated[
        Path | None, typer.Option(help="Name for .png and .html [the file's own].")
    ] = None,
    replaces: Annotated[
        bool, typer.Option("--force", help="Replace the files if they are there already.")
    ] = False,
) -> None:
    """Draw an analysis: CA-MSE, squared bias and variance over patch side and drop."""
    from accelssl.train.gradients.plot import plot

    for path in plot(file, out, replaces=replaces):
        print(path)


def schedule(
    file: File,
    budget: Annotated[
        str, typer.Option(help="Units of the run to plan, as 104M.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("schedule.json"),
    between: Annotated[
        str,
        typer.Option(
            help="steps: change half-way between checkpoints; interpolated: by degrees, in log "
            "cost."
        ),
    ] = "steps",
    as_measured: Annotated[
        bool, typer.Option("--as-measured", help="Let a stage be cheaper than the one before it.")
    ] = False,
    replaces: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there already.")
    ] = False,
) -> None:
    """Choose the compression of each stage by its CA-MSE, for train --schedule.

    Of those that cannot be told from the best, on the same images, the cheapest.
    """
    from accelssl.train.gradients.scheduling import plan_schedule

    print(
        plan_schedule(file, budget, out, rises=not as_measured, between=between, replaces=replaces)
    )
