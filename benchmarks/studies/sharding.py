"""Speed and memory of making shards, compared with the webdataset library's ShardWriter.

    python -m accelssl.benchmarks.studies.sharding PICTURES WORK --files 3000

PICTURES is a folder or a plain tar of JPEGs. They are repeated to --files with links, in WORK, and
packed in turn by `shard_images` with one worker and with two, and by ShardWriter in one process:
copying bytes as it comes, and decoding every picture first as `shard_images` does. The four take
turns, --rounds times. Then tiny pictures, many of them, show how memory grows. Prints a page in
Markdown.
"""

import io
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from PIL import Image

from accelssl.benchmarks.throughput.pictures import repeated
from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.source import SourceImage
from accelssl.shards.write.shard_imagenet import shard_images

WAYS = {
    "accelssl": "accelssl, 1 worker",
    "accelssl_2": "accelssl, 2 workers",
    "shard_writer": "ShardWriter, bytes copied",
    "shard_writer_verified": "ShardWriter, every picture decoded first",
}


def pack(way: str, source: Path, out: Path) -> dict[str, Any]:
    """Pack a folder in one of the WAYS; seconds, files and peak memory of this process."""
    if way.startswith("accelssl"):
        started_s = time.perf_counter()
        files = shard_images(source, out, workers=2 if way.endswith("2") else 1).images
    else:
        import webdataset  # brings torch along: seconds and memory that are not the job's

        started_s = time.perf_counter()
        files = _with_shard_writer(
            webdataset.ShardWriter, source, out, verified=way.endswith("verified")
        )
    elapsed_s = time.perf_counter() - started_s
    peaks = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, largest_child = (peak.ru_maxrss * 1024 for peak in peaks)
    return {
        "files": files,
        "files_per_s": files / elapsed_s,
        "peak_bytes": own,
        "peak_of_a_worker_bytes": largest_child,
    }


def _with_shard_writer(shard_writer: Any, source: Path, out: Path, verified: bool) -> int:
    images = open_source(source)
    order = list(range(images.count("train")))
    Random(0).shuffle(order)
    out.mkdir()
    with shard_writer(str(out / "train-%06d.tar"), maxcount=256, verbose=0) as writer:
        for number, i in enumerate(order):
            image = images.image("train", i)
            writer.write(_sample(number, image, verified))
    return len(order)


def _sample(number: int, image: SourceImage, verified: bool) -> dict[str, Any]:
    data = image.read()
    if verified:
        with Image.open(io.BytesIO(data)) as picture:
            picture.convert("RGB")
    about = {"wnid": image.wnid, "name": image.name}
    return {"__key__": f"{number:08d}", "jpg": data, "cls": image.label, "json": about}


def tiny(folder: Path, files: int) -> Path:
    """A source folder of many small pictures, copies of one."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).convert("RGB").save(buffer, "JPEG")
    data = buffer.getvalue()
    for n in range(files):
        into = folder / "source" / "train" / f"class{n % 100:02d}"
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{n:07d}.jpg").write_bytes(data)
    return folder / "source"


def in_a_process_of_its_own(way: str, source: Path, out: Path) -> dict[str, Any]:
    """`pack`, so that peak memory is that of this one job."""
    command = [sys.executable, "-m", "accelssl.benchmarks.studies.sharding", "--only", way]
    done = subprocess.run(
        [*command, str(source), str(out)], check=True, capture_output=True, text=True
    )
    shutil.rmtree(out)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def page(speeds: dict[str, list[float]], files: int, memory: dict[int, dict[str, Any]]) -> str:
    """Return the measurements in Markdown."""
    base = statistics.median(speeds["shard_writer_verified"])
    lines = [
        f"{files:,} files; {platform.processor() or platform.machine()}, {os.cpu_count()} cores; "
        f"Python {platform.python_version()}, Pillow {version('pillow')}, "
        f"webdataset {version('webdataset')}.",
        "",
        "| way | files/s, median (least to most) | against ShardWriter with decoding |",
        "|---|---|---|",
    ]
    for way, rates in speeds.items():
        median = statistics.median(rates)
        spread = f"{median:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        lines.append(f"| {WAYS[way]} | {spread} | {median / base:.2f} |")
    lines += ["", "| small files | peak of the process | peak of a worker |", "|---|---|---|"]
    for count, result in memory.items():
        own, worker = result["peak_bytes"] / 1e6, result["peak_of_a_worker_bytes"] / 1e6
        lines.append(f"| {count:,} | {own:,.0f} MB | {worker:,.0f} MB |")
    return "\n".join(lines)


def main(
    pictures: Path,
    work: Path,
    files: int = 3000,
    rounds: int = 3,
    only: Annotated[str, typer.Option(help="One way, PICTURES a source, WORK the set.")] = "",
) -> None:
    """Measure, and print a page."""
    if only:
        print(json.dumps(pack(only, pictures, work)))
        return
    source = repeated(pictures, work / "speed", files)
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            result = in_a_process_of_its_own(way, source, work / "out")
            speeds[way].append(result["files_per_s"])
            print(way, f"{result['files_per_s']:,.0f} files/s", file=sys.stderr)
    memory = {}
    for count in (20_000, 100_000):
        memory[count] = in_a_process_of_its_own(
            "accelssl_2", tiny(work / f"memory{count}", count), work / "out"
        )
    print(page(speeds, files, memory))


if __name__ == "__main__":
    typer.run(main)
