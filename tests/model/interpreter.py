"""Triton kernels of the package, run without a GPU by Triton's interpreter."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest


@contextmanager
def interpreting() -> Iterator[ProcessPoolExecutor]:
    """A process that interprets: whether Triton does is settled when it is imported.

    It knows the package's functions, but no test's.
    """
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    with pool, pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        pool.submit(int).result()
        environment.undo()
        yield pool
