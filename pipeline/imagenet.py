"""An image folder -> a verified shard set.

Every image is decoded in full before it is written; what does not decode is named in
quarantine.tsv, and the job goes on. The order is shuffled over the whole split, so that any
contiguous part of a set is a fair sample of it. The same source, seed and options give the same
bytes, whatever the number of workers.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.pipeline.image_folder import ImageFolder
from accelssl.pipeline.manifest import Manifest, ShardEntry, SplitEntry
from accelssl.pipeline.set_folder import SetFolder
from accelssl.pipeline.shard_pool import write_shards
from accelssl.pipeline.shard_writer import Quarantined, ShardPlan, SourceImage, WrittenShard

# By default a split makes at most this many shards (a reader holds a file open for each, and 1024
# are usually allowed), and none so small that a worker's start-up would outweigh it.
_MOST_SHARDS = 256
_LEAST_SAMPLES = 256


class Source(Protocol):
    """Where labelled images come from. A label is a position in `classes`."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def splits(self) -> tuple[str, ...]: ...
    def count(self, split: str) -> int: ...
    def image(self, split: str, i: int) -> SourceImage: ...


@dataclass(frozen=True)
class SplitReport:
    """What became of a split's images. `transcoded` counts written ones, by reason."""

    written: int
    quarantined: int
    transcoded: Mapping[str, int]
    shards: int
    size_bytes: int


@dataclass(frozen=True)
class ShardingReport:
    """The outcome of a sharding job.

    `ignored` counts the entries of the source that are no images; `ignored_examples` has the paths,
    relative to the source, of the first ones. `quarantine` is the list of what did not decode.
    """

    out: Path
    quarantine: Path
    classes: int
    splits: Mapping[str, SplitReport]
    ignored: int
    ignored_examples: tuple[str, ...]
    elapsed_s: float

    @property
    def images(self) -> int:
        """How many images were judged."""
        return sum(split.written + split.quarantined for split in self.splits.values())

    @property
    def images_per_s(self) -> float:
        return self.images / self.elapsed_s

    def __str__(self) -> str:
        lines = [f"{self.out}: {self.classes} classes, {self.images_per_s:,.0f} images/s"]
        for name, split in self.splits.items():
            lines.append(
                f"{name}: {split.written:,} images in {split.shards} shards "
                f"({split.size_bytes / 1e6:,.1f} MB), {split.quarantined} quarantined"
            )
            lines += [f"  {n} transcoded: {why}" for why, n in sorted(split.transcoded.items())]
        if any(split.quarantined for split in self.splits.values()):
            lines.append(f"what did not decode, and why: {self.quarantine}")
        if self.ignored:
            lines.append(
                f"{self.ignored} entries are no images: {', '.join(self.ignored_examples)}, ..."
            )
        return "\n".join(lines)


def shard_images(
    source: Path,
    out: Path,
    *,
    seed: int = 0,
    samples_per_shard: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShardingReport:
    """Write a folder of images, `train/<class>/*` and (optional) `val/<class>/*`, as a shard set.

    `samples_per_shard` counts images of the source; by default a split makes at most 256 shards.
    `workers` is the number of processes, by default one for each core (a script that asks for more
    than one needs `if __name__ == "__main__":`). `progress(done, total)` counts images.

    Raises UserError when the source is missing, unreadable, empty or laid out otherwise, when `out`
    is a set already, holds other files, cannot be written or is full, and when nothing of a split
    decodes. What an interrupted job left in `out` is overwritten.
    """
    started_s = time.monotonic()
    for name, value, least in (
        ("samples_per_shard", samples_per_shard, 1),
        ("workers", workers, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}.", f"Use {least} or more.")
    try:
        folder = SetFolder(out)
        images = ImageFolder(source)
        job = _Job(images, folder, seed, samples_per_shard)
        quarantine = job.run(workers or _cores(), progress)
    except BrokenProcessPool:
        raise UserError(
            "A worker process was killed while it checked images, perhaps for want of memory.",
            "Run it again with fewer workers.",
        ) from None
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}.",
            "Free some space or choose another folder, then run it again.",
        ) from error
    return ShardingReport(
        out=out,
        quarantine=quarantine,
        classes=len(images.classes),
        splits={split: outcome.report() for split, outcome in job.outcome.items()},
        ignored=images.ignored.count,
        ignored_examples=tuple(images.ignored.examples),
        elapsed_s=time.monotonic() - started_s,
    )


@dataclass
class _Outcome:
    """A split so far."""

    shards: list[ShardEntry] = field(default_factory=list)
    transcoded: Counter[str] = field(default_factory=Counter)
    quarantined: list[Quarantined] = field(default_factory=list)

    def entry(self) -> SplitEntry:
        return SplitEntry(
            written=sum(shard.samples for shard in self.shards),
            quarantined=len(self.quarantined),
            transcoded=dict(sorted(self.transcoded.items())),
            shards=tuple(self.shards),
        )

    def report(self) -> SplitReport:
        entry = self.entry()
        size_bytes = sum(shard.tar_bytes + shard.idx_bytes for shard in self.shards)
        return SplitReport(
            entry.written, entry.quarantined, entry.transcoded, len(self.shards), size_bytes
        )


class _Job:
    def __init__(
        self, source: Source, folder: SetFolder, seed: int, samples_per_shard: int | None
    ) -> None:
        self._source = source
        self._folder = folder
        self._seed = seed
        self._samples_per_shard = {
            split: samples_per_shard or _default_samples(source.count(split))
            for split in source.splits
        }
        self.outcome = {split: _Outcome() for split in source.splits}

    def run(self, workers: int, progress: Callable[[int, int], None] | None) -> Path:
        """Write the set; returns the path of its quarantine list."""
        options = {f"samples_per_shard_{k}": n for k, n in self._samples_per_shard.items()}
        self._folder.begin({"seed": self._seed, **options})
        total = sum(self._source.count(split) for split in self._source.splits)

        def on_progress(done: int) -> None:
            if progress is not None:
                progress(done, total)

        for shard in write_shards(self._plans(), workers, on_progress):
            self._take(shard)
        quarantine = self._folder.write_quarantine(
            {split: outcome.quarantined for split, outcome in self.outcome.items()}
        )
        for split, outcome in self.outcome.items():
            if not outcome.shards:
                raise UserError(
                    f"None of the {len(outcome.quarantined)} images of {split} could be decoded.",
                    f"Each is listed with the reason in {quarantine}.",
                )
        self._folder.finish(
            Manifest(
                classes=self._source.classes,
                splits={split: outcome.entry() for split, outcome in self.outcome.items()},
                seed=self._seed,
                options=options,
                written_by={"accelssl": version("accelssl"), "pillow": version("pillow")},
            )
        )
        return quarantine

    def _plans(self) -> Iterator[ShardPlan]:
        for split_number, split in enumerate(self._source.splits):
            order_N = _shuffled(self._source.count(split), self._seed, split_number)
            step = self._samples_per_shard[split]
            for number, first in enumerate(range(0, len(order_N), step)):
                chosen = (self._source.image(split, int(i)) for i in order_N[first : first + step])
                yield ShardPlan(split, self._folder.stem(split, number), first, tuple(chosen))

    def _take(self, shard: WrittenShard) -> None:
        # Shards arrive in the order of their plans, so that numbers and lists come out the same.
        outcome = self.outcome[shard.plan.split]
        entry = self._folder.publish(shard, len(outcome.shards))
        if entry is not None:
            outcome.shards.append(entry)
        outcome.transcoded.update(shard.transcoded)
        outcome.quarantined.extend(shard.quarantined)


def _shuffled(n: int, seed: int, split_number: int) -> npt.NDArray[np.int64]:
    # By the bit generator's raw output: numpy promises to keep it, unlike that of permutation().
    raw_N = np.random.PCG64(np.random.SeedSequence([seed, split_number])).random_raw(n)
    return np.argsort(raw_N, kind="stable")


def _default_samples(images: int) -> int:
    return max(_LEAST_SAMPLES, -(-images // _MOST_SHARDS))


def _cores() -> int:
    # Only the cores this process may use, where the system can tell (not on macOS).
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
