"""Running jobs in several processes, with results in the order of the jobs.

Processes rather than threads: work that holds the interpreter's lock for part of the time would cap
a many-core machine at a few cores. The memory that processes share has no locks: a process that
is killed while it holds a lock would stop all others for ever.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from ctypes import Array, c_bool, c_longlong
from typing import TypeVar

_POLL_S = 0.2
_JOBS_PER_WORKER = 2

Job = TypeVar("Job")
Result = TypeVar("Result")
OnStep = Callable[[int], None]
"""Called with how much was done since the last call, in any unit; it may raise to end the job."""


def usable_cores() -> int:
    """Return the number of cores this process may use (on macOS, the number of all cores)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Stopped(Exception):
    """The work was stopped during a job of this process."""


def run_jobs(
    work: Callable[[Job, OnStep], Result],
    jobs: Iterable[Job],
    workers: int,
    on_progress: Callable[[int], None],
) -> Iterator[Result]:
    """Yield `work(job, on_step)` for each job. Work, jobs and results must pickle.

    Takes jobs only a few ahead. Calls `on_progress`, in this process, with the steps of all jobs so
    far. One worker means this process itself. Raises what a job raises, and BrokenProcessPool when
    a worker was killed.
    """
    if workers == 1:
        yield from _run_here(work, jobs, on_progress)
        return
    # Not fork: the caller may hold locks in other threads (torch, DALI).
    context = multiprocessing.get_context("spawn")
    # A slot for each job under way, written by the one worker that has it.
    slots: Array[c_longlong] = context.RawArray(c_longlong, _JOBS_PER_WORKER * workers)
    stop = context.RawValue(c_bool, False)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (slots, stop))
    under_way: deque[tuple[int, Future[Result]]] = deque()
    steps_of_finished = 0

    def oldest() -> Result:
        nonlocal steps_of_finished
        slot, future = under_way[0]
        while not wait([future], timeout=_POLL_S).done:
            on_progress(steps_of_finished + sum(slots))
        result = future.result()
        under_way.popleft()
        steps_of_finished += slots[slot]
        slots[slot] = 0
        on_progress(steps_of_finished + sum(slots))
        return result

    try:
        for number, job in enumerate(jobs):
            if len(under_way) == len(slots):
                yield oldest()
            slot = number % len(slots)
            under_way.append((slot, pool.submit(_run_in_worker, work, job, slot)))
        while under_way:
            yield oldest()
    finally:
        stop.value = True
        pool.shutdown(cancel_futures=True)


def _run_here(
    work: Callable[[Job, OnStep], Result], jobs: Iterable[Job], on_progress: Callable[[int], None]
) -> Iterator[Result]:
    steps = 0

    def on_step(count: int) -> None:
        nonlocal steps
        steps += count
        on_progress(steps)

    for job in jobs:
        yield work(job, on_step)


_in_worker: tuple["Array[c_longlong]", c_bool] | None = None


def _start_worker(slots: "Array[c_longlong]", stop: c_bool) -> None:
    global _in_worker
    _in_worker = slots, stop
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The pool's processes outlive a parent that is killed: they wait for work for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(work: Callable[[Job, OnStep], Result], job: Job, slot: int) -> Result:
    if _in_worker is None:
        raise RuntimeError("runs only in a process that _start_worker has prepared")
    slots, stop = _in_worker

    def on_step(count: int) -> None:
        slots[slot] += count
        if stop.value:
            raise _Stopped

    return work(job, on_step)
