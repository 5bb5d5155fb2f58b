"""The commands about this machine: how fast it is, and how true. Heavy imports wait."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accelssl.errors import UserError

if TYPE_CHECKING:
    from accelssl.pipeline.compress.op import Implementation as Known

Implementation = Annotated[str, typer.Option(help="cuda, triton, torch or auto: the best here.")]


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
    example = "Example: accelssl "
    app.command("bench-throughput", epilog=example + "bench-throughput --only kernel")(
        bench_throughput
    )
    app.command("doctor", epilog=example + "doctor --augmentations")(doctor)


def bench_throughput(
    only: Annotated[str, typer.Option(help="What to measure: kernel, the fused op.")] = "kernel",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")] = "auto",
    implementation: Annotated[
        str | None, typer.Option(help="cuda, triton or torch [both of a GPU].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a page in Markdown and the figures in JSON.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, no torch.compile.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine: the fused op against the copy bandwidth and against other ways."""
    from rich.console import Console

    from accelssl.benchmarks.kernel import bench_kernel, write_page
    from accelssl.train.command import pick_device

    if only != "kernel":
        raise UserError(f"--only {only} is not something to measure.", "Use --only kernel.")
    implementations = None if implementation is None else (_known(implementation),)
    with Console(stderr=True).status("starting") as status:
        bench = bench_kernel(
            pick_device(device),
            implementations=implementations,
            quick=quick,
            progress=status.update,
        )
    print(bench.to_json() if as_json else bench)
    if out is not None:
        print(write_page(bench, out))


def doctor(
    augmentations: Annotated[
        bool, typer.Option("--augmentations", help="Differences from torchvision and Pillow.")
    ] = False,
    implementation: Implementation = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")] = "auto",
) -> None:
    """Look this machine over: which implementation of the op it runs, and how true that is."""
    from accelssl.pipeline.compress import op
    from accelssl.train.command import pick_device

    chosen = pick_device(device)
    known = _known(implementation)
    if known in ("cuda", "triton") and chosen.type != "cuda":
        raise UserError(f"--implementation {known} does not run on {chosen}.", "It needs a GPU.")
    if augmentations:
        from accelssl.pipeline.compress.deviations import augmentation_deviations

        print(augmentation_deviations(known, str(chosen)))
    else:
        name = op.runs_on(chosen) if known == "auto" else known
        print(f"the fused op on {chosen}: {name}")


def _known(implementation: str) -> "Known":
    from accelssl.pipeline.compress.op import IMPLEMENTATIONS

    for known in IMPLEMENTATIONS:
        if known == implementation:
            return known
    raise UserError(
        f"--implementation {implementation} is unknown.",
        f"Use one of: {', '.join(IMPLEMENTATIONS)}.",
    )
