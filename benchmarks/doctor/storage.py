"""Checks of the speed of the disk and of the shared memory."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from accelssl.benchmarks.doctor.finding import Context, Finding, mega
from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards

READERS = 16
IMAGE_BYTES = 100_000
MOST_BYTES, TRIAL_BYTES = 2**29, 2**28
LEAST_SHARED_BYTES = 1e9
LEAST_SHARED_BYTES_PER_S = 1e9
_RANDOM_READS, _MOST_S, _BLOCK_BYTES = 1000, 4.0, 2**22
SHARED_MEMORY = Path("/dev/shm")


def least_rates(on_gpu: bool) -> tuple[float, float]:
    """Return the rates a disk must reach: bytes/s in order, and images/s from random places.

    A GPU takes some thousands of images a second at strong compression, a CPU some tens.
    """
    return (500e6, 3000.0) if on_gpu else (50e6, 100.0)


def check_shards(context: Context) -> Finding:
    """Open the shard set of --data and read samples."""
    if context.data is None:
        return Finding("shard set", "absent", "not asked for", "Name yours with --data.")
    try:
        shards = open_shards(context.data)
        split = shards.split(shards.splits[0])
        places = np.linspace(0, len(split) - 1, min(64, len(split))).astype(int).tolist()
        started_s = time.perf_counter()
        with ThreadPoolExecutor(max(READERS, split.storage.parallel_reads)) as pool:
            read = list(pool.map(split.read, places))
        took_s = time.perf_counter() - started_s
    except UserError as error:
        return Finding("shard set", "broken", error.what, error.remedy)
    total = sum(len(shards.split(name)) for name in shards.splits)
    mean_kb = sum(len(image) for image, _ in read) / len(read) / 1000
    found = (
        f"{total:,} samples; {len(read)} read in {1000 * took_s:,.0f} ms, {mean_kb:,.1f} kB each "
        "on the mean"
    )
    return Finding("shard set", "ok", found)


def check_disk(context: Context) -> Finding:
    """Read from the disk, past the file cache: random pieces as in training, then in order."""
    if "://" in (context.data or ""):
        return Finding("disk", "absent", f"{context.data} is no local disk")
    files, is_data = _files(context)
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        return Finding("disk", "absent", f"{context.data} has no tars to read")
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    try:
        if not all(map(_drop_from_cache, descriptors)):
            what = f"{files[0].parent} cannot be read past the file cache (it may be memory itself)"
            return Finding("disk", "absent", what)
        images_per_s = _random_reads_per_s(descriptors, sizes)
        for descriptor in descriptors:
            _drop_from_cache(descriptor)
        bytes_per_s = _bytes_per_s(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return _judged(bytes_per_s, images_per_s, files[0].parent, is_data, context.on_gpu)


def _judged(
    bytes_per_s: float, images_per_s: float, folder: Path, is_data: bool, on_gpu: bool
) -> Finding:
    where = str(folder) if is_data else "the folder for temporary files"
    found = (
        f"{mega(bytes_per_s)}/s in order, {images_per_s:,.0f} images/s of {IMAGE_BYTES // 1000} kB "
        f"at random with {READERS} readers, uncached, in {where}"
    )
    least_bytes, least_images = least_rates(on_gpu)
    if bytes_per_s >= least_bytes and images_per_s >= least_images:
        return Finding("disk", "ok", found)
    remedy = "Keep the set on a local NVMe drive, or have memory enough to cache all of it."
    if not is_data:
        remedy += " Name the set with --data to measure its own disk."
    return Finding("disk", "slow", found, remedy)


def _files(context: Context) -> tuple[list[Path], bool]:
    """Return the files to read, up to about MOST_BYTES; and True if the files are the user's."""
    if context.data is not None:
        chosen: list[Path] = []
        for tar in sorted(Path(context.data).glob("*.tar")):
            if sum(file.stat().st_size for file in chosen) >= MOST_BYTES:
                break
            chosen.append(tar)
        return chosen, True
    path = context.scratch / "trial.bin"
    block = os.urandom(_BLOCK_BYTES)  # a disk that compresses gains nothing
    with path.open("wb") as file:
        for _ in range(TRIAL_BYTES // _BLOCK_BYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return [path], False


def _drop_from_cache(descriptor: int) -> bool:
    """Return True if the system reports that the file has left the cache."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    size = os.fstat(descriptor).st_size
    places = [size * k // 16 for k in range(16)]
    cached = sum(_is_cached(descriptor, place) for place in places)
    return cached <= len(places) // 4  # others may read the same file


def _is_cached(descriptor: int, place: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except OSError as error:
        # Not there, or a file system that cannot say: then what it was asked for is believed.
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise


def _random_reads_per_s(descriptors: list[int], sizes: list[int]) -> float:
    rng = np.random.default_rng()
    chosen = rng.choice(len(sizes), _RANDOM_READS, p=np.array(sizes) / sum(sizes))
    begin_s = time.perf_counter()

    def read(which: int, fraction: float) -> int:
        if time.perf_counter() - begin_s > _MOST_S:
            return 0
        place = int(fraction * max(1, sizes[which] - IMAGE_BYTES))
        return len(os.pread(descriptors[which], IMAGE_BYTES, place))

    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    with ThreadPoolExecutor(READERS) as pool:
        done = sum(n > 0 for n in pool.map(read, chosen.tolist(), rng.random(_RANDOM_READS)))
    took_s = time.perf_counter() - begin_s
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
    return done / took_s


def _bytes_per_s(descriptors: list[int]) -> float:
    done, begin_s = 0, time.perf_counter()
    for descriptor in descriptors:
        os.lseek(descriptor, 0, os.SEEK_SET)
        while block := os.read(descriptor, _BLOCK_BYTES):
            done += len(block)
            if time.perf_counter() - begin_s > _MOST_S or done >= MOST_BYTES:
                return done / (time.perf_counter() - begin_s)
    return done / (time.perf_counter() - begin_s)


def check_shared_memory(context: Context) -> Finding:
    """Check that shared memory is fast, and large enough for NCCL and loaders' worker processes."""
    name = "shared memory"
    if not SHARED_MEMORY.is_dir():
        return Finding(name, "absent", f"there is no {SHARED_MEMORY}")
    space = shutil.disk_usage(SHARED_MEMORY)
    found = f"{mega(space.free)} of {mega(space.total)} free in {SHARED_MEMORY}"
    if space.free < LEAST_SHARED_BYTES:
        remedy = "Start the container with --shm-size=8g or --ipc=host: several GPUs talk by it."
        return Finding(name, "slow", found, remedy)
    rate = _shared_bytes_per_s(SHARED_MEMORY / f"accelssl-doctor-{os.getpid()}")
    found += f", {mega(rate)}/s written and read"
    if rate < LEAST_SHARED_BYTES_PER_S:
        remedy = "See whether the machine swaps (vmstat 1) or its memory is under a limit."
        return Finding(name, "slow", found, remedy)
    return Finding(name, "ok", found)


def _shared_bytes_per_s(path: Path) -> float:
    block = os.urandom(_BLOCK_BYTES)
    blocks = TRIAL_BYTES // _BLOCK_BYTES
    try:
        with path.open("xb", buffering=0) as file:
            write_s = _timed(lambda: [file.write(block) for _ in range(blocks)])
        target = bytearray(_BLOCK_BYTES)
        with path.open("rb", buffering=0) as file:
            read_s = _timed(lambda: [file.readinto(target) for _ in range(blocks)])
    finally:
        path.unlink(missing_ok=True)
    return 2 * blocks * _BLOCK_BYTES / (write_s + read_s)


def _timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
