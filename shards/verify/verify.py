"""Verification of a shard set: it agrees with its manifest and is fit for training.

Nothing stops at the first fault: whatever the files still allow to check is checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

from accelssl.errors import UserError
from accelssl.shards.storage.storage import (
    Location,
    listed_sizes_bytes,
    open_storage,
)
from accelssl.shards.verify.files import check_files
from accelssl.shards.verify.findings import (
    CHECKSUMS,
    FILES,
    IMAGES,
    INDEX,
    LABELS,
    MANIFEST,
    NOT_CHECKED,
    Findings,
)
from accelssl.shards.verify.manifest_checks import ExpectedSet, read_expected
from accelssl.shards.verify.sample_content import NO_LABEL
from accelssl.shards.verify.shard_check import CheckedShard, ShardTask, check_shard
from accelssl.shards.verify.verification import Verification, verification
from accelssl.shards.verify.whole_set import ReadShard, check_whole
from accelssl.shards.write.worker_pool import run_jobs, usable_cores
from accelssl.text import plural


def verify_shards(
    location: Location,
    *,
    full: bool = False,
    sample: int = 1000,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Check a shard set: manifest, files, checksums, indexes, labels, classes, order, images.

    Reads every file once. `sample` images, spread evenly over the set, are decoded, or all of them
    if `full`. `workers` is the number of processes, by default one for each core (a script that
    asks for more than one needs `if __name__ == "__main__":`). `progress(done, total)` counts
    bytes. The report is the same for any number of workers.

    Raises UserError for a place without a manifest, a place that cannot be listed, and a killed
    worker. The report has everything that is wrong with the set.
    """
    for name, value, least in (("sample", sample, 0), ("workers", workers, 1)):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}.", f"Use {least} or more.")
    storage = open_storage(location)
    findings = Findings()
    expected = read_expected(storage, findings)
    sizes_bytes = listed_sizes_bytes(storage)
    check_files(storage, expected, sizes_bytes, findings)
    tasks = list(_tasks(location, expected, sizes_bytes, None if full else sample))
    workers = min(workers or usable_cores(), max(1, len(tasks)))
    checked = _check_all(tasks, workers, progress)
    for shard in checked:
        findings.take(shard.findings)
    read = [
        ReadShard(shard.shard.split, shard.shard.name, shard.content)
        for shard in checked
        if shard.content is not None
    ]
    figures = _figures(expected, tasks, checked) | check_whole(expected, read, findings)
    return verification(storage.location, findings, figures)


def _tasks(
    location: Location, expected: ExpectedSet, sizes_bytes: Mapping[str, int], sample: int | None
) -> Iterator[ShardTask]:
    """Yield a task for each shard. A sample of None is all images."""
    before = 0
    for shard in expected.shards:
        if sample is None:
            to_decode = None
        elif shard.samples is None:
            # The shard's place in the set is unknown: take its share from its beginning.
            to_decode = frozenset(range(-(-sample // len(expected.shards))))
        else:
            to_decode = _spread(sample, expected.samples, before, shard.samples)
        before += shard.samples or 0
        tar_bytes, idx_bytes = (sizes_bytes.get(f"{shard.name}.{ext}") for ext in ("tar", "idx"))
        yield ShardTask(
            location=location,
            shard=shard,
            classes=expected.classes,
            components=expected.components,
            is_adopted=expected.is_adopted,
            tar_bytes=tar_bytes,
            idx_bytes=idx_bytes,
            to_decode=to_decode,
        )


def _spread(sample: int, samples: int, before: int, here: int) -> frozenset[int]:
    """Return the positions in a shard of `sample` positions spread evenly over `samples`.

    The shard has `here` samples, after `before` samples of other shards.
    """
    sample = min(sample, samples)
    # Position k of them is k * samples // sample.
    first, end = (-(-at * sample // samples) if samples else 0 for at in (before, before + here))
    return frozenset(k * samples // sample - before for k in range(first, end))


def _check_all(
    tasks: Sequence[ShardTask], workers: int, progress: Callable[[int, int], None] | None
) -> list[CheckedShard]:
    total_bytes = sum(task.size_bytes for task in tasks)

    def on_progress(done_bytes: int) -> None:
        if progress is not None:
            progress(min(done_bytes, total_bytes), total_bytes)

    try:
        checked = list(run_jobs(check_shard, tasks, workers, on_progress))
    except BrokenProcessPool:
        raise UserError(
            "A worker process was killed while it checked a shard, perhaps because memory ran out.",
            "Run it again with fewer workers.",
        ) from None
    # Bytes that could not be read count as done.
    on_progress(total_bytes)
    return checked


def _figures(
    expected: ExpectedSet, tasks: Sequence[ShardTask], checked: Sequence[CheckedShard]
) -> dict[str, str]:
    contents = [shard.content for shard in checked if shard.content]
    found = sum(len(content.label_N) for content in contents)
    decoded = sum(content.decoded for content in contents)
    of_found = f"{decoded:,} of {found:,} decoded"
    labelled = sum(int((content.label_N != NO_LABEL).sum()) for content in contents)
    tars = sum(task.tar_bytes is not None for task in tasks)
    hashed = sum(shard.hashed for shard in checked)
    size_bytes = sum(task.size_bytes for task in tasks)
    has_sizes = any(shard.tar_bytes is not None for shard in expected.shards)
    has_checksums = any(shard.tar_sha256 or shard.idx_sha256 for shard in expected.shards)
    classes = "no classes" if expected.classes is None else plural(len(expected.classes), "class")
    splits = " and ".join(expected.splits)
    files = f"{plural(tars, 'tar')} with index, {_size(size_bytes)}"
    compared = f"{hashed:,} of {2 * len(tasks):,} files compared"
    in_range = f"{labelled:,} labels in range"
    numbers = f"{NOT_CHECKED}: the manifest names no classes; {labelled:,} labels are numbers"
    return {
        MANIFEST: f"{classes}, {splits}, {plural(expected.samples, 'sample')}",
        FILES: files if has_sizes else f"{NOT_CHECKED}: the manifest names no files; {files}",
        CHECKSUMS: compared if has_checksums else f"{NOT_CHECKED}: the manifest has no checksums",
        INDEX: f"{found:,} samples found",
        LABELS: numbers if expected.classes is None else in_range,
        IMAGES: of_found if decoded else f"{NOT_CHECKED}: {of_found}",
    }


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
