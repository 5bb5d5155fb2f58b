"""The commands for shard sets: make, verify, adopt. Heavy imports are inside the commands."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accelssl.option_names import option_of
from accelssl.progress_lines import line_is_due

if TYPE_CHECKING:
    from rich.progress import TaskID

_SAMPLES = "samples_per_shard"
Source = Annotated[
    Path,
    typer.Argument(
        help="Folder with train/<class>/* and val/<class>/*, with ImageNet's archives as "
        "downloaded (read in place), or with WebDataset tars; or a train archive."
    ),
]
ShortSide = Annotated[
    int | None,
    typer.Option(
        help="Make pictures smaller whose shorter side has more pixels, as 256 [off]: less to "
        "store and decode; what it does to accuracy is not measured yet."
    ),
]
Workers = Annotated[int, typer.Option(help="Processes at work; 0: one for each core.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = "Example: accelssl "
    app.command("shard-imagenet", epilog=example + "shard-imagenet ~/imagenet shards")(
        shard_imagenet
    )
    app.command("verify-shards", epilog=example + "verify-shards shards --full")(verify_shards)
    app.command("index-shards", epilog=example + "index-shards ~/imagenet-wds")(index_shards)


def shard_imagenet(
    source: Source,
    out: Annotated[str, typer.Argument(help="Folder or s3://bucket/prefix of the new set.")],
    val: Annotated[
        Path | None, typer.Option(help="Validation folder or archive, if not in SOURCE.")
    ] = None,
    devkit: Annotated[
        Path | None, typer.Option(help="ILSVRC2012 devkit, for the labels of a flat val.")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="in100 (CMC's ImageNet-100), or a file of class names.")
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Class names, separated by commas.")] = None,
    limit_per_class: Annotated[
        int | None, typer.Option(help="At most so many images of a class in each split.")
    ] = None,
    max_side: Annotated[
        int | None, typer.Option(help="Make pictures smaller whose longer side has more pixels.")
    ] = None,
    short_side: ShortSide = None,
    samples_per_shard: Annotated[
        int | None, typer.Option(help="Images in a shard [at most 256 shards a split].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the global shuffle.")] = 0,
    workers: Workers = 0,
) -> None:
    """Pack labelled images into verified, shuffled WebDataset shards for training.

    Every image is decoded in full first; what does not decode is listed in quarantine.tsv. Stopped
    or killed, the same command goes on where it was.
    """
    from accelssl.shards.sources.open_source import open_source
    from accelssl.shards.sources.selection import Selection
    from accelssl.shards.write.option_ranges import refuse_out_of_range
    from accelssl.shards.write.shard_imagenet import shard_images

    spelled = partial(_spelled, "shard-imagenet")
    refuse_out_of_range(spelled, limit_per_class=(limit_per_class, 1), workers=(workers, 0))
    names = None if classes is None else _names(classes)
    selection = Selection(subset, names, limit_per_class)
    with _interrupt_explained(), _bar("images") as show:
        report = shard_images(
            lambda: open_source(
                source,
                val=val,
                devkit=devkit,
                selection=selection,
                on_listed=lambda listed: show("listing", listed, None),
            ),
            out,
            seed=seed,
            samples_per_shard=samples_per_shard,
            max_side=max_side,
            short_side=short_side,
            workers=workers or None,
            progress=lambda done, total: show("verifying and writing", done, total),
            spelled=spelled,
        )
    print(report)


def verify_shards(
    shards: Annotated[str, typer.Argument(help="Folder or s3://bucket/prefix of the set.")],
    full: Annotated[bool, typer.Option("--full", help="Decode every image.")] = False,
    sample: Annotated[int, typer.Option(help="Images decoded without --full.")] = 1000,
    workers: Workers = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a shard set: checksums, index, labels, duplicates, shuffle, images.

    Exit code 1 and a list when something is wrong.
    """
    from accelssl.shards.verify.verify import verify_shards as verify
    from accelssl.shards.write.option_ranges import refuse_out_of_range

    spelled = partial(_spelled, "verify-shards")
    refuse_out_of_range(spelled, sample=(sample, 0), workers=(workers, 0))
    with _bar("bytes") as show:
        report = verify(
            shards,
            full=full,
            sample=sample,
            workers=workers or None,
            progress=lambda done, total: show("checking", done, total),
        )
    print(report.to_json() if as_json else report)
    if not report.is_right:
        raise typer.Exit(1)


def index_shards(
    folder: Annotated[Path, typer.Argument(help="Folder of WebDataset tars.")],
    classes: Annotated[
        Path | None, typer.Option(help="File of class names, in the order of the labels.")
    ] = None,
    workers: Workers = 0,
) -> None:
    """Make a folder of WebDataset tars that others wrote a shard set, without touching the tars.

    Exit code 1 and a list of reasons when a tar would be read wrong.
    """
    from accelssl.shards.adopt.adopt import index_shards as index
    from accelssl.shards.sources.selection import class_names
    from accelssl.shards.write.option_ranges import refuse_out_of_range

    refuse_out_of_range(partial(_spelled, "index-shards"), workers=(workers, 0))
    names = None if classes is None else class_names(classes)
    with _bar("bytes") as show:
        adoption = index(
            folder,
            classes=names,
            workers=workers or None,
            progress=lambda done, total: show("reading", done, total),
        )
    print(adoption)
    if not adoption.is_a_set:
        raise typer.Exit(1)


def _spelled(command: str, name: str) -> str:
    """Return the option for a parameter or for a name in a manifest; else the name itself."""
    if name.startswith(f"{_SAMPLES}_"):
        return f"{option_of(_SAMPLES, command)} of {name.removeprefix(f'{_SAMPLES}_')}"
    return option_of(name, command)


def _names(classes: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in classes.split(",") if name.strip())


@contextmanager
def _interrupt_explained() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped. Run the same command to continue.", file=sys.stderr)
        raise


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on stderr; yield the function to call with (what, done, total).

    Where stderr is no terminal, a line now and then.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(unit)
        return
    counts: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn("{task.fields[per_s]}")]
    if unit == "bytes":
        counts = [DownloadColumn(), TransferSpeedColumn()]
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(task, visible=False)
                tasks[what] = bar.add_task(what, total=None, per_s="")
            speed = bar.tasks[tasks[what]].speed
            per_s = "" if speed is None else f"{speed:,.0f} {unit}/s"
            bar.update(tasks[what], completed=done, total=total, per_s=per_s)

        yield show


def _lines(unit: str) -> Callable[[str, int, int | None], None]:
    is_due = line_is_due()

    def show(what: str, done: int, total: int | None) -> None:
        if is_due():
            of_all = "" if total is None else f" of {total:,}"
            print(f"{what}: {done:,}{of_all} {unit}", file=sys.stderr, flush=True)

    return show
