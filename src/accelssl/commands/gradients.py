"""The commands that measure gradient errors and make a schedule of them. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(help="File of analyze-gradients.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Run = Annotated[
    Path,
    typer.Argument(
        help="Folder of a run. Its --size must be divisible by 16, the uncompressed patch side.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="JSON file to write.")]
Checkpoints = Annotated[
    str, typer.Option(help="Shares of the run's budget; train with --keep-at to have them.")
]
Data = Annotated[str | None, typer.Option(help="Shard set [the run's own].")]
Patches = Annotated[
    str | None,
    typer.Option(help="Patch sides of the grid [those of 16,20,24,30,40,48 that divide --size]."),
]
Drops = Annotated[
    str | None,
    typer.Option(help="Drops of the grid [those of 0,.25,.5,.75,.9 that keep a patch]."),
]
Samples = Annotated[int, typer.Option(help="Images for each cell of the grid.")]
Subbatch = Annotated[
    int, typer.Option(help="Images per gradient. The variance is taken between sub-batches.")
]
Estimator = Annotated[
    str,
    typer.Option(help="Squared bias: paired is unbiased, plugin is the paper's formula."),
]
Negatives = Annotated[
    str,
    typer.Option(
        help="Negatives of an image: subbatch, the others of its sub-batch; bank, also fixed ones, "
        "up to the run's batch (not for dino)."
    ),
]
Scope = Annotated[str, typer.Option(help="Gradients of all trained weights, or of the backbone.")]
StepUnits = Annotated[
    str | None,
    typer.Option(help="Cost of a step in CA-MSE, in units [an uncompressed step of the run]."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of images, crops and drops [the run's + 1].")]
Precision = Annotated[str | None, typer.Option(help="bf16, fp32 or auto [the run's].")]
CellsAtOnce = Annotated[
    int | None, typer.Option(help="Cells whose sums are in memory together [as many as fit].")
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = "Example: accelssl "
    app.command("analyze-gradients", epilog=example + "analyze-gradients run --out camse.json")(
        analyze_gradients
    )
    app.command("plot", epilog=example + "plot camse.json")(plot)
    app.command(
        "schedule", epilog=example + "schedule camse.json --budget 104M --out schedule.json"
    )(schedule)


def analyze_gradients(
    run: Run,
    out: Out = Path("camse.json"),
    checkpoints: Checkpoints = "0,.25,.5,.75,1",
    data: Data = None,
    patches: Patches = None,
    drops: Drops = None,
    samples: Samples = 16_384,
    subbatch: Subbatch = 64,
    estimator: Estimator = "paired",
    negatives: Negatives = "subbatch",
    scope: Scope = "all",
    step_units: StepUnits = None,
    seed: Seed = None,
    precision: Precision = None,
    cells_at_once: CellsAtOnce = None,
    device: Device = "auto",
) -> None:
    """Measure bias and variance of the gradients of compressed views at checkpoints of a run.

    The file has squared bias, variance and cost-adjusted error (CA-MSE) of each compression, with
    intervals. The same command continues after an interruption; torchrun shares the work.
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
    replaces: Force = False,
) -> None:
    """Draw an analysis: CA-MSE, squared bias and variance over patch side and drop."""
    from accelssl.train.gradients.plot import plot

    for path in plot(file, out, replaces=replaces):
        print(path)


def schedule(
    file: File,
    budget: Annotated[
        str, typer.Option(help="Budget of the run to plan in units, as 104M.", show_default=False)
    ],
    out: Out = Path("schedule.json"),
    between: Annotated[
        str,
        typer.Option(
            help="steps: change half-way between checkpoints; interpolated: change gradually, "
            "linear in log cost."
        ),
    ] = "steps",
    as_measured: Annotated[
        bool, typer.Option("--as-measured", help="Let a stage be cheaper than the one before it.")
    ] = False,
    replaces: Force = False,
) -> None:
    """Choose the compression of each stage by its CA-MSE, for train --schedule.

    Each stage takes the cheapest compression that is statistically equal to the best.
    """
    from accelssl.train.gradients.scheduling import plan_schedule

    print(
        plan_schedule(file, budget, out, rises=not as_measured, between=between, replaces=replaces)
    )
