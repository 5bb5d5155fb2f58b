"""The commands about this machine: how fast it is, and how true. Heavy imports wait."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelssl.errors import UserError
from accelssl.progress_lines import telling

if TYPE_CHECKING:
    import torch

    from accelssl.benchmarks.kernel.result import KernelBench
    from accelssl.benchmarks.result_files import ResultFiles
    from accelssl.benchmarks.step.result import StepBench
    from accelssl.benchmarks.throughput.plan import Plan
    from accelssl.benchmarks.throughput.result import ThroughputBench
    from accelssl.pipeline.compress.op import Implementation as Known

Implementation = Annotated[str, typer.Option(help="cuda, triton, torch or auto: the best here.")]


def add_to(app: typer.Typer) -> None:
    """Make them commands of the application."""
    example = "Example: accelssl "
    app.command("bench-throughput", epilog=example + "bench-throughput --shards shards")(
        bench_throughput
    )
    app.command("doctor", epilog=example + "doctor --data shards")(doctor)


def bench_throughput(
    only: Annotated[
        str | None,
        typer.Option(help="decoder, loader, step, live, or kernel: the fused op [all but it]."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Names in timm, with commas between them [ViT-B, ViT-S; --quick ViT-S; on a CPU "
            "ViT-Ti]."
        ),
    ] = None,
    compressions: Annotated[
        str | None,
        typer.Option(
            help="P:DROP, with commas: 16:0,30:0.5 [six; with --quick or on a CPU these two]."
        ),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(help="Shard set to read [one of bundled photographs, made anew].")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs a step [512; 16 on a CPU].")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads that decode, on a GPU 8 at most [a core each].")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps a window, at least.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")] = "auto",
    implementation: Annotated[
        str | None, typer.Option(help="Of the kernel: cuda, triton or torch [both of a GPU].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a page in Markdown, a plot, figures in JSON.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --only step: where its time goes, by kernels.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine: decoder, loader and step alone, and training live, as images a second.

    Beside them torchvision's loader and the peak of matrix products, in the same run. With --only
    kernel the fused op against the copy bandwidth and against other ways.
    """
    chosen = {
        "models": models,
        "compressions": compressions,
        "shards": shards,
        "batch": batch,
        "threads": threads,
        "steps": steps,
    }
    if explain and only != "step":
        raise UserError("--explain looks into the step alone.", "Add --only step.")
    if only == "step":
        _refuse_given({"shards": shards, "threads": threads}, "does not go with --only step")
    if only == "kernel":
        _refuse_given(chosen, "does not go with --only kernel")
        _bench_kernel(device, implementation, out, quick, as_json)
        return
    _refuse_given({"implementation": implementation}, "goes with --only kernel alone")
    from accelssl.benchmarks.result_files import ResultFiles, try_to
    from accelssl.benchmarks.throughput.plan import plan_of
    from accelssl.benchmarks.throughput.throughput import bench_throughput, write_json, write_page
    from accelssl.train.device import pick_device

    place = pick_device(device)
    plan = plan_of(place, quick, only, models, compressions, batch, threads, steps)
    files = None if out is None else ResultFiles(out)
    if explain:
        _explain_step(place, plan, files, as_json)
        return
    with telling() as tell:
        bench = bench_throughput(
            place,
            plan,
            shards=shards,
            progress=tell,
            on_row=lambda so_far: files and try_to(lambda: write_json(so_far, files)),
        )
    _show(bench, as_json)
    if files:
        _tell_path(write_page(bench, files), as_json)


def _explain_step(
    device: "torch.device", plan: "Plan", files: "ResultFiles | None", as_json: bool
) -> None:
    from accelssl.benchmarks.result_files import try_to
    from accelssl.benchmarks.step.explain import explain_step, write_json, write_page

    with telling() as tell:
        bench = explain_step(
            device,
            plan,
            progress=tell,
            on_row=lambda so_far: files and try_to(lambda: write_json(so_far, files)),
        )
    _show(bench, as_json)
    if files:
        _tell_path(write_page(bench, files), as_json)


def _show(bench: "ThroughputBench | StepBench | KernelBench", as_json: bool) -> None:
    print(bench.to_json() if as_json else bench)


def _tell_path(page: Path, as_json: bool) -> None:
    """Beside JSON, which somebody reads to its end, not after it."""
    print(page, file=sys.stderr if as_json else sys.stdout)


def _refuse_given(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name} {value} {why}.", "Leave one of the two out.")


def _bench_kernel(
    device: str, implementation: str | None, out: Path | None, quick: bool, as_json: bool
) -> None:
    from accelssl.benchmarks.kernel.kernel import bench_kernel, write_page
    from accelssl.benchmarks.result_files import ResultFiles
    from accelssl.train.device import pick_device

    implementations = None if implementation is None else (_known(implementation),)
    files = None if out is None else ResultFiles(out)
    with telling() as tell:
        bench = bench_kernel(
            pick_device(device),
            implementations=implementations,
            quick=quick,
            progress=tell,
        )
    _show(bench, as_json)
    if files:
        _tell_path(write_page(bench, files), as_json)


def doctor(
    augmentations: Annotated[
        bool, typer.Option("--augmentations", help="Differences from torchvision and Pillow.")
    ] = False,
    implementation: Implementation = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU.")] = "auto",
    data: Annotated[
        str | None, typer.Option(help="Shard set whose disk to measure [a temporary file's].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look this machine over, in a minute: what is here, is it right, is it fast.

    Each line is ok, slow, broken or absent, with what to do; exit code 1 if anything is broken.
    """
    known = _known(implementation)
    if augmentations:
        print(_deviations(known, device))
        return
    import tempfile

    from accelssl.benchmarks.doctor import chart
    from accelssl.benchmarks.doctor.examination import examine
    from accelssl.benchmarks.doctor.finding import Context, device_to_look_at

    # Not train's pick_device: its imports need the packages that are looked for here.
    chosen = device_to_look_at(device)
    _refuse_without_gpu(known, chosen.type)
    with (
        tempfile.TemporaryDirectory(prefix="accelssl-doctor-") as scratch,
        telling() as tell,
    ):
        context = Context(chosen, Path(scratch), data, known, device)
        examination = examine(context, tell)
    if as_json:
        print(chart.to_json(examination))
    else:
        chart.show(examination)
    if examination.is_broken:
        raise typer.Exit(1)


def _deviations(known: "Known", device: str) -> str:
    from accelssl.pipeline.compress.deviations import augmentation_deviations
    from accelssl.train.device import pick_device

    chosen = pick_device(device)
    _refuse_without_gpu(known, chosen.type)
    return str(augmentation_deviations(known, str(chosen)))


def _refuse_without_gpu(known: "Known", device: str) -> None:
    if known in ("cuda", "triton") and device != "cuda":
        raise UserError(f"--implementation {known} does not run on {device}.", "It needs a GPU.")


def _known(implementation: str) -> "Known":
    from accelssl.pipeline.compress.op import IMPLEMENTATIONS

    for known in IMPLEMENTATIONS:
        if known == implementation:
            return known
    raise UserError(
        f"--implementation {implementation} is unknown.",
        f"Use one of: {', '.join(IMPLEMENTATIONS)}.",
    )
