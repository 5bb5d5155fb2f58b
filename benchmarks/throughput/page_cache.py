"""The files of a set in the system's page cache: drop them, or read them in."""

import os
from collections.abc import Iterable
from pathlib import Path

CHUNK_BYTES = 2**23
PROBES = 4
MOST_BYTES = 8 * 10**9


def drop_from_cache(files: Iterable[str]) -> str | None:
    """Drop the files from the page cache; return None, or the reason if they are still there.

    The kernel may refuse without an error (tmpfs keeps its only copy there), so each file is then
    asked for pages without leave to wait for the disk: what still comes was cached.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return "this system has no way to drop files from its cache"
    for path in files:
        if not Path(path).is_file():
            return f"{path} is not a local file"
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            reason = _still_cached(descriptor, path)
            # Asking can make the kernel read ahead.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            reason = f"the file system of {path} does not say what is cached ({error.strerror})"
        finally:
            os.close(descriptor)
        if reason:
            return reason
    return None


def _still_cached(descriptor: int, path: str) -> str | None:
    size_bytes = os.fstat(descriptor).st_size
    for probe in range(PROBES):
        offset = size_bytes * probe // PROBES
        try:
            os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        return f"the system keeps {path} in its cache"
    return None


def read_into_cache(files: Iterable[str]) -> str | None:
    """Read the files once to fill the page cache; return None, or the reason for a failure."""
    paths = []
    for path in files:
        if not Path(path).is_file():
            return f"{path} is not a local file"
        paths.append(Path(path))
    size_bytes = sum(path.stat().st_size for path in paths)
    if size_bytes > min(MOST_BYTES, available_bytes() // 2):
        return f"its {size_bytes / 1e9:.1f} GB may not fit in memory"
    for local in paths:
        with local.open("rb", buffering=0) as file:
            while file.read(CHUNK_BYTES):
                pass
    return None


def available_bytes() -> int:
    """Return Linux's estimate of memory available without swapping; else the free memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
