"""The door: commands that parse, call one function and print the outcome. Heavy imports wait."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from accelssl import machine_commands, shard_commands
from accelssl.errors import UserError

app = typer.Typer(
    help="Self-supervised pretraining of Vision Transformers at a quarter of the cost.",
    epilog="A first run on real photographs, nothing to download: accelssl demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("accelssl"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    pass


shard_commands.add_to(app)

Run = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]


def main() -> None:
    """Entry point: bad input is one sentence on what is wrong, one on what to do, exit code 2."""
    _set_defaults_of_the_environment()
    try:
        app()
    except UserError as error:
        _refuse(error.what, error.remedy)
    except ModuleNotFoundError as error:
        if (error.name or "accelssl").partition(".")[0] == "accelssl":
            raise
        _refuse(
            f"The package {error.name} is missing.",
            "Install accelssl again, with what it needs: pip install accelssl.",
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        _refuse(
            f"{error.filename or 'A file'} could not be written: {error.strerror}.",
            "Free space and go on: train with --resume, other commands by calling them again.",
        )
    except KeyboardInterrupt:
        sys.exit(130)


def _refuse(what: str, remedy: str) -> NoReturn:
    print(f"error: {what}\n{remedy}", file=sys.stderr)
    sys.exit(2)


def _set_defaults_of_the_environment() -> None:
    """What must be set before torch is loaded; the user's own settings win."""
    from accelssl.pipeline.hardware_queues import set_hardware_queues

    set_hardware_queues()
    # Threads that spin while they wait take the cores from decoding, and on a machine that does
    # something else besides they slow training on the CPU twenty times and more.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@app.command(
    epilog="Example: accelssl train --algo simclr --data shards --out run --budget 0.2M "
    "--model vit_small_patch16_224 --patch 30 --drop 0.5"
)
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[
        str | None, typer.Option(help="Folder of the shard set, or s3://bucket/prefix.")
    ] = None,
    algo: Annotated[str | None, typer.Option(help="Method: simclr or moco [simclr].")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Compute to spend in units (forward passes at 224 px), e.g. 0.2M."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="timm VisionTransformer [vit_base_patch16_224].")
    ] = None,
    patch: Annotated[int | None, typer.Option(help="Patch side in pixels [30].")] = None,
    drop: Annotated[float | None, typer.Option(help="Fraction of patches dropped [0.5].")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="JSON list of stages, instead of --patch and --drop.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Settings for thousands, not millions, of images.")
    ] = False,
    size: Annotated[int | None, typer.Option(help="Side of the crops in pixels [240].")] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step [512].")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate for 256 images.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's weight decay.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the budget.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the loss.")] = None,
    min_area: Annotated[float | None, typer.Option(help="Smallest crop's share of area.")] = None,
    head_hidden: Annotated[int | None, typer.Option(help="Width of the head.")] = None,
    momentum: Annotated[
        float | None, typer.Option(help="moco: of the key encoder at the start [0.99].")
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option("--symmetric", help="moco: both views are query and key, at twice the cost."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, crops and order [0].")] = None,
    eval_every: Annotated[
        float | None, typer.Option(help="Evaluate each time this share of the budget is spent.")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp32 or auto: where it helps.")] = "auto",
    threads: Annotated[int, typer.Option(help="Decoding threads; 0: all cores.")] = 0,
    readers: Annotated[
        int | None, typer.Option(help="Processes that read files, 0: threads do [2 on a GPU].")
    ] = None,
    prefetch: Annotated[int | None, typer.Option(help="Batches decoded ahead [2].")] = None,
    hw_load: Annotated[
        float | None, typer.Option(help="Share of images for a GPU's JPEG decoder [0.9].")
    ] = None,
    preallocate: Annotated[
        int | None, typer.Option(help="Side in pixels of images to set GPU memory aside for [0].")
    ] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    restart_epoch: Annotated[
        bool,
        typer.Option(
            "--restart-epoch",
            help="With --resume: go on with the next whole epoch, on other ranks or data, too.",
        ),
    ] = False,
    baseline: Annotated[
        bool, typer.Option(help="Time uncompressed steps at the end, for the speed-up.")
    ] = True,
) -> None:
    """Pretrain a Vision Transformer on a shard set until the budget is spent."""
    from accelssl.train.command import Machine, train_command

    options: dict[str, Any] = {
        "model": model,
        "size": size,
        "batch": batch,
        "base_lr": lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "temperature": temperature,
        "min_area": min_area,
        "head_hidden": head_hidden,
        "momentum": momentum,
        "symmetric": symmetric,
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
                "preallocated_px": preallocate,
            },
        ),
        resume=resume,
        baseline=baseline,
        restart_epoch=restart_epoch,
    )
    if stopped_by:
        _stop(f"Stopped; continue with: accelssl train --out {out} --resume", 128 + stopped_by)


@app.command(epilog="Example: accelssl evaluate run --data shards --protocol nn")
def evaluate(
    run: Run,
    data: Annotated[str | None, typer.Option(help="Shard set [the run's own].")] = None,
    protocol: Annotated[str, typer.Option(help="nn: nn1 and knn20.")] = "nn",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Nearest-neighbour accuracy of a run, beside its untrained network and raw pixels."""
    from accelssl.train.command import evaluate_command

    print(evaluate_command(run, data, protocol, device, as_json))


@app.command(epilog="Example: accelssl report run")
def report(run: Run) -> None:
    """Write the report of a run: RUN/report.html."""
    from accelssl.train.report import write_report

    print(write_report(run))


@app.command(epilog="Example: accelssl demo")
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


machine_commands.add_to(app)
