"""The commands that reckon before anything is trained. Heavy imports wait."""

from pathlib import Path
from typing import Annotated

import typer

from accelssl.commands.run_options import Algo, Drop, KnownSchedule, Model, Patch, Recipe, Small
from accelssl.progress_lines import telling


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
    example = "Example: accelssl "
    app.command("plan", epilog=example + "plan --algo moco --data shards --hours 8")(plan)


def plan(
    data: Annotated[str, typer.Option(help="Folder of the shard set, or s3://bucket/prefix.")],
    budget: Annotated[
        str | None, typer.Option(help="Compute to spend in units, e.g. 104M.")
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Find the budget that fits.")] = None,
    epochs_equivalent: Annotated[
        float | None,
        typer.Option(help="Spend as much as that many uncompressed epochs at 224 px."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="How many will train; one is measured [1].")
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(help="JSON of bench-throughput to plan with [measure here and now]."),
    ] = None,
    recipe: Recipe = None,
    algo: Algo = None,
    model: Model = None,
    patch: Patch = None,
    drop: Drop = None,
    schedule: KnownSchedule = None,
    small: Small = False,
    size: Annotated[int | None, typer.Option(help="Side of the crops in pixels [240].")] = None,
    batch: Annotated[
        str | None, typer.Option(help="Images in a step of all GPUs [512, dino --small 128].")
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric", help="moco: both views are query and key.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="dino: paper or official [paper].")] = None,
    local_crops: Annotated[
        int | None,
        typer.Option(help="dino: small crops of an image [paper 6, official 10; with --small 2]."),
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Decoding threads, on a GPU 8 at most; 0: all cores.")
    ] = 0,
    precision: Annotated[str, typer.Option(help="bf16, fp32 or auto: where it helps.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a run will be before it is: steps, images, units, time, and whether data keeps up.

    Prints the train command that carries it out. Speeds are measured for some seconds a stage, and
    a step at least, on one GPU or the CPU, or taken from a saved bench-throughput.
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
