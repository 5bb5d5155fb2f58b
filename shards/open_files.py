"""The limit on open files: a descriptor for each tar of a set."""

import contextlib

SPARE = 512
"""For everything else that a training process opens."""


def allow_open_files(files: int) -> None:
    """Raise this process's limit so that `files` may be open besides SPARE others, if it may be.

    The usual limit of 1,024 is for programs that wait on descriptors with select().
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = files + SPARE if hard == unlimited else min(files + SPARE, hard)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
