"""Commands `train` and `demo`. Heavy imports happen inside the commands."""

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from accelssl.commands.run_options import Algo, Drop, Model, Patch, Recipe, ScheduleChoice, Small
from accelssl.grouped_help import GOING_ON, MACHINE, ONE_METHOD, TRAINING, GroupedHelp

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: a GPU if available.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = (
        "Example: accelssl train --algo simclr --data shards --out run --budget 0.2M "
        "--model vit_small_patch16_224 --patch 30 --drop 0.5"
    )
    app.command("train", cls=GroupedHelp, epilog=example)(train)
    app.command("demo", epilog="Example: accelssl demo")(demo)


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[
        str | None, typer.Option(help="Folder of the shard set, or s3://bucket/prefix.")
    ] = None,
    recipe: Recipe = None,
    algo: Algo = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Compute to spend in units (forward passes at 224 px), e.g. 0.2M. The last step "
            "may exceed the budget."
        ),
    ] = None,
    model: Model = None,
    patch: Patch = None,
    drop: Drop = None,
    schedule: ScheduleChoice = None,
    auto_share: Annotated[
        float | None,
        typer.Option(
            help="With --schedule auto: maximum cost of the estimates, as a share of the budget "
            "and in addition to the budget [0.02].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_at: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: choose at these shares of the budget [0,.25,.5,.75].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_patches: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: candidate patch sides, in addition to p16 d0 "
            "[16,20,24,30,40,48].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_drops: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: candidate drops. Omit drops too fast for the loader "
            "[0,.25,.5,.75,.9].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    small: Small = False,
    size: Annotated[
        int | None,
        typer.Option(help="Side of the crops in pixels [240].", rich_help_panel=TRAINING),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Images per step, over all ranks; auto: measure the fastest number that fits the "
            "memory [512, dino --small 128].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate per 256 images [simclr 2e-4, moco 1.5e-4, dino 7.5e-4].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            help="AdamW's weight decay [0.1; dino 0.04, rising to 0.4].", rich_help_panel=TRAINING
        ),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            help="Warm-up of the learning rate, as a share of the budget "
            "[simclr 0.1, moco 0.133, dino 0.025].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Temperature of the loss; dino: of the queries [0.1, moco 0.2].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    min_area: Annotated[
        float | None,
        typer.Option(
            help="Minimum area of a crop, as a share of the image [0.08, dino 0.25].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    head_hidden: Annotated[
        int | None,
        typer.Option(
            help="Hidden width of the projection head [4096, dino 2048].", rich_help_panel=TRAINING
        ),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(
            help="Initial momentum of the key encoder (teacher) [moco 0.99, dino 0.996].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric",
            help="moco: use both views as query and as key, at twice the cost.",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="dino: paper (one large crop is the query, the other the key) or official (each "
            "is both) [paper].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    local_crops: Annotated[
        int | None,
        typer.Option(
            help="dino: number of small crops per image [paper 6, official 10; with --small 2].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    prototypes: Annotated[
        int | None,
        typer.Option(
            help="dino: number of prototypes, the output width [65536].", rich_help_panel=ONE_METHOD
        ),
    ] = None,
    teacher_temp: Annotated[
        float | None,
        typer.Option(
            help="dino: temperature of the keys (teacher) after their warm-up [0.07].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed of weights, crops and order [0].", rich_help_panel=TRAINING),
    ] = None,
    eval_every: Annotated[
        float | None,
        typer.Option(
            help="Evaluate after each such share of the budget, e.g. 0.2.", rich_help_panel=TRAINING
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(help="bf16, fp32, or auto: bf16 where it is faster.", rich_help_panel=MACHINE),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            help="Decoding threads, at most 8 with a GPU. 0: one per core.", rich_help_panel=MACHINE
        ),
    ] = 0,
    readers: Annotated[
        int | None,
        typer.Option(
            help="Processes that read files. 0: read in threads [3 with a GPU].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(help="Batches that each decoder prepares ahead [3].", rich_help_panel=MACHINE),
    ] = None,
    hw_load: Annotated[
        float | None,
        typer.Option(
            help="Share of images for the GPU's JPEG hardware [0.85; 0.9 below 12 threads].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(
            help="Decoders per GPU; batches are distributed round-robin [2].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    preallocate: Annotated[
        int | None,
        typer.Option(
            help="Reserve decoder memory for images of this side in pixels [0].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            help="Number of latest checkpoints to keep as checkpoint-STEP.pt [0].",
            rich_help_panel=GOING_ON,
        ),
    ] = None,
    keep_at: Annotated[
        str | None,
        typer.Option(
            help="Keep a checkpoint at these shares of the budget, e.g. 0,.25,.5,.75,1. "
            "analyze-gradients also needs a --size divisible by 16.",
            rich_help_panel=GOING_ON,
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out from its last checkpoint (one every five minutes).",
            rich_help_panel=GOING_ON,
        ),
    ] = False,
    restart_epoch: Annotated[
        bool,
        typer.Option(
            "--restart-epoch",
            help="With --resume: continue at the next epoch. Allows other ranks or data.",
            rich_help_panel=GOING_ON,
        ),
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            help="Time uncompressed steps at the end for the report's speed-up. Minutes on a CPU.",
            rich_help_panel=MACHINE,
        ),
    ] = True,
) -> None:
    """Pretrain a Vision Transformer on a shard set until the budget is spent."""
    from accelssl.train.command import Machine, train_command
    from accelssl.train.config.auto import AutoOptions
    from accelssl.train.plan.batch_choice import parse_batch

    options: dict[str, Any] = {
        "model": model,
        "size": size,
        "batch": parse_batch(batch),
        "base_lr": lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "temperature": temperature,
        "min_area": min_area,
        "head_hidden": head_hidden,
        "momentum": momentum,
        "symmetric": symmetric,
        "mode": mode,
        "n_local": local_crops,
        "prototypes": prototypes,
        "teacher_temp": teacher_temp,
        "seed": seed,
        "eval_every": eval_every,
    }
    stopped_by = train_command(
        out=out,
        data=data,
        algo=algo,
        budget=budget,
        compression=(patch, drop, schedule),
        small=small,
        options=options,
        machine=Machine(
            device,
            precision,
            threads,
            {
                "readers": readers,
                "prefetch": prefetch,
                "hw_load": hw_load,
                "decoders": decoders,
                "preallocated_px": preallocate,
            },
            keep,
            keep_at,
        ),
        resume=resume,
        baseline=baseline,
        restart_epoch=restart_epoch,
        recipe=recipe,
        auto=AutoOptions(auto_share, auto_at, auto_patches, auto_drops),
    )
    if stopped_by:
        on = "--resume" if baseline else "--resume --no-baseline"
        _stop(f"Stopped; continue with: accelssl train --out {out} {on}", 128 + stopped_by)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for images, shards and run.")] = Path("demo"),
    budget: Annotated[str, typer.Option(help="Compute to spend, in units.")] = "8k",
    device: Device = "auto",
) -> None:
    """Run shards, training, evaluation and report on a few bundled photographs."""
    from accelssl.train.demo import run_demo

    stopped_by = run_demo(out, budget, device)
    if stopped_by:
        _stop(
            f"Stopped; continue with: accelssl demo --out {out} --budget {budget}", 128 + stopped_by
        )


def _stop(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)
