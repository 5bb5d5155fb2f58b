"""Writing a verified shard set from a source of labelled images.

Every image is decoded in full before it is written; what does not decode is named in
quarantine.tsv, and the job goes on. The order is shuffled over the whole split, so that any
contiguous part of a set is a fair sample of it. The same images, seed and options give the same
bytes, whatever the number of workers, the packaging of the source, and the interruptions.
"""

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accelssl.errors import UserError
from accelssl.shards.manifest import Manifest, ShardEntry, SplitEntry
from accelssl.shards.shard_index import COMPONENTS
from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.source import Source
from accelssl.shards.storage.storage import Location, remedy
from accelssl.shards.write.journal import Options, Record, fingerprint
from accelssl.shards.write.option_ranges import (
    Spelling,
    refuse_out_of_range,
    refuse_unusable_sides,
)
from accelssl.shards.write.set_folder import SetFolder, set_folder
from accelssl.shards.write.shard_writer import Quarantined, ShardPlan, write_shard
from accelssl.shards.write.sharding_report import ShardingReport, SplitReport
from accelssl.shards.write.worker_pool import run_jobs, usable_cores
from accelssl.text import plural

# By default a split makes at most this many shards (a reader holds a file open for each, and 1024
# are usually allowed), and none so small that a worker's start-up would outweigh it.
_MOST_SHARDS = 256
_LEAST_SAMPLES = 256


def shard_images(
    source: Path | Callable[[], Source],
    out: Location,
    *,
    seed: int = 0,
    samples_per_shard: int | None = None,
    max_side: int | None = None,
    short_side: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    spelled: Spelling = str,
) -> ShardingReport:
    """Write labelled images as a shard set.

    `source` is a path (see `open_source` for the layouts) or a function that opens a source, which
    is called when `out` is known to be fit.
    `out` is a folder or an s3:// URL. `samples_per_shard` counts images of the source; by default a
    split makes at most 256 shards. `max_side` and `short_side` are in pixels: pictures whose longer
    or shorter side is larger are made smaller until they keep both; `short_side` is 16 to
    `max_side`. `workers` is the number of processes, by default one for each core (a script that
    asks for more than one needs `if __name__ == "__main__":`). `progress(done, total)` counts
    images. `spelled` gives the names of parameters and of the manifest's options in messages.

    Continues an interrupted call of the same job from the files in `out`. Raises UserError for a
    source that is missing, unreadable, empty, of another layout, or not the source of the
    interrupted call. `out` must be writable, have space, and hold no set, no other files and no job
    with other options. A split without any image that decodes raises UserError too.
    """
    started_s = time.monotonic()
    refuse_out_of_range(
        spelled, samples_per_shard=(samples_per_shard, 1), workers=(workers, 1), seed=(seed, 0)
    )
    refuse_unusable_sides(spelled, max_side, short_side)
    sides = {"max_side": max_side, "short_side": short_side}
    with _failures_explained(out), set_folder(out) as folder:
        images = open_source(source) if isinstance(source, Path) else source()
        job = _Job(images, folder, seed, samples_per_shard, sides)
        quarantine, digest = job.run(workers or usable_cores(), progress, spelled)
    return ShardingReport(
        out=str(out),
        digest=digest,
        quarantine=quarantine,
        classes=len(images.classes),
        splits={split: SplitReport.of(outcome.entry()) for split, outcome in job.outcome.items()},
        ignored=images.ignored.count,
        ignored_examples=tuple(images.ignored.examples),
        notes=(*images.notes, *job.notes()),
        taken_over=job.taken_over,
        elapsed_s=time.monotonic() - started_s,
    )


@contextmanager
def _failures_explained(out: Location) -> Iterator[None]:
    """Raise UserError in place of an OSError, or when a worker process was killed."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "A worker process was killed, perhaps because memory ran out.",
            "Run the same command with fewer workers: it continues from the finished shards.",
        ) from None
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what_to_do = "Free some space." if is_full else remedy(out)
        raise UserError(
            f"{out} cannot be written: {error.strerror}.",
            f"{what_to_do} Run the same command: it continues from the finished shards.",
        ) from error


@dataclass
class _Outcome:
    """The shards and counts of a split up to now."""

    shards: list[ShardEntry] = field(default_factory=list)
    transcoded: Counter[str] = field(default_factory=Counter)
    quarantined: list[Quarantined] = field(default_factory=list)
    images_of_class: Counter[str] = field(default_factory=Counter)
    """Number of the source's images of each class."""

    def lost_classes(self) -> list[str]:
        """Return the classes without any image that decodes."""
        lost = Counter(image.wnid for image in self.quarantined)
        return sorted(name for name, n in lost.items() if n == self.images_of_class[name])

    def entry(self) -> SplitEntry:
        return SplitEntry(
            written=sum(shard.samples for shard in self.shards),
            quarantined=len(self.quarantined),
            transcoded=dict(sorted(self.transcoded.items())),
            shards=tuple(self.shards),
        )


class _Job:
    def __init__(
        self,
        source: Source,
        folder: SetFolder,
        seed: int,
        samples_per_shard: int | None,
        sides: Mapping[str, int | None],
    ) -> None:
        self._source = source
        self._folder = folder
        self._seed = seed
        self._sides = {name: side for name, side in sides.items() if side is not None}
        self._samples_per_shard = {
            split: samples_per_shard or _default_samples(source.count(split))
            for split in source.splits
        }
        self.outcome = {split: _Outcome() for split in source.splits}
        self.taken_over = 0

    def run(
        self, workers: int, progress: Callable[[int, int], None] | None, spelled: Spelling
    ) -> tuple[str, str]:
        """Write the set; return the path of its quarantine list and its digest."""
        options = self._options()
        written_by = {"accelssl": version("accelssl"), "pillow": version("pillow")}
        plans = self._plans()
        records = self._folder.done_before({**options, **written_by, "seed": self._seed}, spelled)
        self._take_over(records, plans)
        self._folder.begin()
        total = sum(self._source.count(split) for split in self._source.splits)

        def on_progress(done: int) -> None:
            if progress is not None:
                progress(self.taken_over + done, total)

        on_progress(0)
        for shard in run_jobs(write_shard, plans, workers, on_progress):
            # They arrive in the order of their plans, so numbers and lists come out the same.
            split = shard.plan.split
            record = self._folder.publish(shard, len(self.outcome[split].shards))
            self._count(shard.plan, record)
        quarantine = self._folder.write_quarantine(
            {split: outcome.quarantined for split, outcome in self.outcome.items()}
        )
        self._refuse_empty_splits(quarantine)
        manifest = Manifest(
            classes=self._source.classes,
            splits={split: outcome.entry() for split, outcome in self.outcome.items()},
            components=COMPONENTS,
            seed=self._seed,
            options=options,
            written_by=written_by,
        )
        self._folder.finish(manifest)
        return quarantine, manifest.digest

    def notes(self) -> list[str]:
        """Return notes on the outcome for the user."""
        lost = {split: outcome.lost_classes() for split, outcome in self.outcome.items()}
        return [
            f"No image of {split} is left of {plural(len(names), 'class')}: {', '.join(names[:5])}"
            f"{', ...' if len(names) > 5 else ''}. Repair them, or leave the class out."
            for split, names in lost.items()
            if names
        ]

    def _options(self) -> Options:
        shards = {f"samples_per_shard_{split}": n for split, n in self._samples_per_shard.items()}
        return {**self._source.options, **shards, **self._sides}

    def _plans(self) -> Iterator[ShardPlan]:
        for split_number, split in enumerate(self._source.splits):
            order_N = _shuffled(self._source.count(split), self._seed, split_number)
            step = self._samples_per_shard[split]
            for number, first in enumerate(range(0, len(order_N), step)):
                chosen = (self._source.image(split, int(i)) for i in order_N[first : first + step])
                stem = self._folder.stem(split, number)
                yield ShardPlan(split, stem, first, tuple(chosen), **self._sides)

    def _take_over(self, records: list[Record], plans: Iterator[ShardPlan]) -> None:
        for record, plan in zip(records, islice(plans, len(records)), strict=True):
            if record.plan != fingerprint(plan):
                raise UserError(
                    f"The source has changed since {self._folder.location} was begun: "
                    "images were added, removed or renamed.",
                    "Choose another folder, or remove this one.",
                )
            self._count(plan, record)
            self.taken_over += len(plan.images)

    def _count(self, plan: ShardPlan, record: Record) -> None:
        outcome = self.outcome[plan.split]
        outcome.images_of_class.update(image.wnid for image in plan.images)
        if record.entry is not None:
            outcome.shards.append(record.entry)
        outcome.transcoded.update(record.transcoded)
        outcome.quarantined.extend(record.quarantined)

    def _refuse_empty_splits(self, quarantine: str) -> None:
        for split, outcome in self.outcome.items():
            if not outcome.shards:
                raise UserError(
                    f"None of the {len(outcome.quarantined)} images of {split} could be decoded.",
                    f"Each is listed with the reason in {quarantine}.",
                )


def _shuffled(n: int, seed: int, split_number: int) -> npt.NDArray[np.int64]:
    # By the bit generator's raw output: numpy promises to keep it, unlike that of permutation().
    raw_N = np.random.PCG64(np.random.SeedSequence([seed, split_number])).random_raw(n)
    return np.argsort(raw_N, kind="stable")


def _default_samples(images: int) -> int:
    return max(_LEAST_SAMPLES, -(-images // _MOST_SHARDS))
