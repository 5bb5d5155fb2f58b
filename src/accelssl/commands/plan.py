"""The command that plans a run. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

from accelssl.commands.run_options import Algo, Drop, KnownSchedule, Model, Patch, Recipe, Small
from accelssl.progress_lines import telling

Data = Annotated[str, typer.Option(help="Folder of the shard set, or s3://bucket/prefix.")]
Budget = Annotated[str | None, typer.Option(help="Compute to spend in units, e.g. 104M.")]
Hours = Annotated[float | None, typer.Option(help="Find the budget that fits into these hours.")]
EpochsEquivalent = Annotated[
    float | None,
    typer.Option(help="Spend the units of this many uncompressed epochs at 224 px."),
]
Gpus = Annotated[int | None, typer.Option(help="Number of GPUs for training; one is measured [1].")]
Bench = Annotated[
    Path | None,
    typer.Option(help="JSON of bench-throughput to plan with [measure on this machine]."),
]
Size = Annotated[int | None, typer.Option(help="Side of the crops in pixels [240].")]
Batch = Annotated[
    str | None, typer.Option(help="Images in a step of all GPUs [512, dino --small 128].")
]
Symmetric = Annotated[
    bool | None, typer.Option("--symmetric", help="moco: both views are query and key.")
]
Mode = Annotated[str | None, typer.Option(help="dino: paper or official [paper].")]
LocalCrops = Annotated[
    int | None,
    typer.Option(help="dino: small crops of an image [paper 6, official 10; with --small 2]."),
]
Threads = Annotated[int, typer.Option(help="Decoding threads, on a GPU 8 at most; 0: all cores.")]
Precision = Annotated[str, typer.Option(help="bf16, fp32 or auto: bf16 where it helps.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    example = "Example: accelssl plan --algo moco --data shards --hours 8"
    app.command("plan", epilog=example)(plan)


def plan(
    data: Data,
    budget: Budget = None,
    hours: Hours = None,
    epochs_equivalent: EpochsEquivalent = None,
    gpus: Gpus = None,
    bench: Bench = None,
    recipe: Recipe = None,
    algo: Algo = None,
    model: Model = None,
    patch: Patch = None,
    drop: Drop = None,
    schedule: KnownSchedule = None,
    small: Small = False,
    size: Size = None,
    batch: Batch = None,
    symmetric: Symmetric = None,
    mode: Mode = None,
    local_crops: LocalCrops = None,
    threads: Threads = 0,
    precision: Precision = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Estimate steps, images, units and time of a run, and compare the data loader with the need.

    Also prints the train command. Each stage is timed for some seconds, and for at least one step,
    on one GPU or the CPU; --bench takes the speeds from a saved bench-throughput instead.
    """
    from accelssl.train.plan.batch_choice import parse_batch
    from accelssl.train.plan.plan_command import Asked, Where, plan_command

    asked = Asked(
        data=data,
        algo=algo,
        recipe=recipe,
        compression=(patch, drop, schedule),
        small=small,
        options={
            "model": model,
            "size": size,
            "batch": parse_batch(batch),
            "symmetric": symmetric,
            "mode": mode,
            "n_local": local_crops,
        },
        budget=budget,
        hours=hours,
        epochs=epochs_equivalent,
    )
    with telling() as tell:
        where = Where(device, gpus, bench, threads, precision)
        planned = plan_command(asked, where, as_json=as_json, progress=tell)
    print(planned)
