"""The commands that train: a run, and the demo. Heavy imports wait."""

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from accelssl.commands.run_options import Algo, Drop, Model, Patch, Recipe, ScheduleChoice, Small
from accelssl.grouped_help import GOING_ON, MACHINE, ONE_METHOD, TRAINING, GroupedHelp

Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
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
            help="Compute to spend in units (forward passes at 224 px), e.g. 0.2M; the last step "
            "may go beyond it."
        ),
    ] = None,
    model: Model = None,
    patch: Patch = None,
    drop: Drop = None,
    schedule: ScheduleChoice = None,
    auto_share: Annotated[
        float | None,
        typer.Option(
            help="With --schedule auto: the most its estimates may cost, as a share of the budget, "
            "beside it [0.02].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_at: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: shares of the budget to choose at [0,.25,.5,.75].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_patches: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: patch sides to choose among, beside p16 d0 "
            "[16,20,24,30,40,48].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    auto_drops: Annotated[
        str | None,
        typer.Option(
            help="With --schedule auto: drops to choose among; leave out what the loader cannot "
            "feed [0,.25,.5,.75,.9].",
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
            help="Images in a step; auto measures how many are fast and fit the memory [512, dino "
            "--small 128].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate for 256 images [simclr 2e-4, moco 1.5e-4, dino 7.5e-4].",
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
            help="Share of the budget the rate rises over [simclr 0.1, moco 0.133, dino 0.025].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of the loss, with dino of its queries [0.1, moco 0.2].", rich_help_panel=TRAINING
        ),
    ] = None,
    min_area: Annotated[
        float | None,
        typer.Option(
            help="Smallest crop's share of the image [0.08, dino 0.25].", rich_help_panel=TRAINING
        ),
    ] = None,
    head_hidden: Annotated[
        int | None,
        typer.Option(help="Width of the head [4096, dino 2048].", rich_help_panel=TRAINING),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(
            help="Of the key encoder at the start [moco 0.99, dino 0.996].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric",
            help="moco: both views are query and key, at twice the cost.",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="dino: paper, one large crop is query and one key, or official, both are both "
            "[paper].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    local_crops: Annotated[
        int | None,
        typer.Option(
            help="dino: small crops of an image [paper 6, official 10; with --small 2].",
            rich_help_panel=ONE_METHOD,
        ),
    ] = None,
    prototypes: Annotated[
        int | None,
        typer.Option(help="dino: width of the output [65536].", rich_help_panel=ONE_METHOD),
    ] = None,
    teacher_temp: Annotated[
        float | None,
        typer.Option(
            help="dino: of the key's softmax after its warm-up [0.07].", rich_help_panel=ONE_METHOD
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, crops and order [0].", rich_help_panel=TRAINING)
    ] = None,
    eval_every: Annotated[
        float | None,
        typer.Option(
            help="Evaluate each time this share of the budget is spent.", rich_help_panel=TRAINING
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="bf16, fp32 or auto: where it helps.", rich_help_panel=MACHINE)
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            help="Decoding threads, on a GPU 8 at most; 0: all cores.", rich_help_panel=MACHINE
        ),
    ] = 0,
    readers: Annotated[
        int | None,
        typer.Option(
            help="Processes that read files, 0: threads do [3 on a GPU].", rich_help_panel=MACHINE
        ),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(help="Batches that a decoder works ahead [3].", rich_help_panel=MACHINE),
    ] = None,
    hw_load: Annotated[
        float | None,
        typer.Option(
            help="Share of images for a GPU's JPEG decoder [0.85; 0.9 below 12 threads].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(
            help="A GPU's decoders, which take batches in turn [2].", rich_help_panel=MACHINE
        ),
    ] = None,
    preallocate: Annotated[
        int | None,
        typer.Option(
            help="Side in pixels of images to set GPU memory aside for [0].",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            help="Latest checkpoints to keep, as checkpoint-STEP.pt [0].", rich_help_panel=GOING_ON
        ),
    ] = None,
    keep_at: Annotated[
        str | None,
        typer.Option(
            help="Shares of the budget to keep a checkpoint at, as in 0,.25,.5,.75,1; "
            "analyze-gradients also needs a --size divisible by 16.",
            rich_help_panel=GOING_ON,
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out from its checkpoint, written every five minutes.",
            rich_help_panel=GOING_ON,
        ),
    ] = False,
    restart_epoch: Annotated[
        bool,
        typer.Option(
            "--restart-epoch",
            help="With --resume: go on with the next whole epoch, on other ranks or data, too.",
            rich_help_panel=GOING_ON,
        ),
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            help="Time uncompressed steps at the end, for the report's speed-up; minutes on a CPU.",
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
    out: Annotated[Path, typer.Option(help="Folder for pictures, shards and run.")] = Path("demo"),
    budget: Annotated[str, typer.Option(help="Compute to spend, in units.")] = "8k",
    device: Device = "auto",
) -> None:
    """The whole way on a few real photographs: shards, training, evaluation, report."""
    from accelssl.train.demo import run_demo

    stopped_by = run_demo(out, budget, device)
    if stopped_by:
        _stop(
            f"Stopped; continue with: accelssl demo --out {out} --budget {budget}", 128 + stopped_by
        )


def _stop(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)
