"""Writes shards in several processes at once, and hands them back in the order of their plans.

Processes rather than threads: checking an image holds the interpreter's lock for part of the time,
which would cap a many-core machine at a few cores. What the processes share has no locks, because a
process that is killed while it holds one would stop all others for ever.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from ctypes import Array, c_bool, c_longlong

from accelssl.pipeline.shard_writer import ShardPlan, WrittenShard, write_shard

_POLL_S = 0.2
_PLANS_PER_WORKER = 2


class _Stopped(Exception):
    """The job was given up while this process was at work for it."""


def write_shards(
    plans: Iterable[ShardPlan], workers: int, on_progress: Callable[[int], None]
) -> Iterator[WrittenShard]:
    """Write every plan; see `write_shard` for what that leaves on disk.

    Takes plans only a few ahead of the writing. Calls `on_progress`, in this process, with the
    number of images dealt with so far. One worker means this process itself.
    Raises OSError when a file cannot be written, and BrokenProcessPool when a worker was killed.
    """
    if workers == 1:
        yield from _write_here(plans, on_progress)
        return
    # Not fork: the caller may hold locks in other threads (torch, DALI).
    context = multiprocessing.get_context("spawn")
    # A slot for each plan under way, written by the one worker that has it.
    slots: Array[c_longlong] = context.RawArray(c_longlong, _PLANS_PER_WORKER * workers)
    stop = context.RawValue(c_bool, False)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (slots, stop))
    under_way: deque[tuple[int, Future[WrittenShard]]] = deque()
    images_done = 0

    def oldest() -> WrittenShard:
        nonlocal images_done
        slot, future = under_way[0]
        while not wait([future], timeout=_POLL_S).done:
            on_progress(images_done + sum(slots))
        shard = future.result()
        under_way.popleft()
        images_done += len(shard.plan.images)
        slots[slot] = 0
        on_progress(images_done + sum(slots))
        return shard

    try:
        for number, plan in enumerate(plans):
            if len(under_way) == len(slots):
                yield oldest()
            slot = number % len(slots)
            under_way.append((slot, pool.submit(_write_in_worker, plan, slot)))
        while under_way:
            yield oldest()
    finally:
        stop.value = True
        pool.shutdown(cancel_futures=True)


def _write_here(
    plans: Iterable[ShardPlan], on_progress: Callable[[int], None]
) -> Iterator[WrittenShard]:
    images_done = 0

    def on_image() -> None:
        nonlocal images_done
        images_done += 1
        on_progress(images_done)

    for plan in plans:
        yield write_shard(plan, on_image)


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


def _write_in_worker(plan: ShardPlan, slot: int) -> WrittenShard:
    if _in_worker is None:
        raise RuntimeError("runs only in a process that _start_worker has prepared")
    slots, stop = _in_worker

    def on_image() -> None:
        slots[slot] += 1
        if stop.value:
            raise _Stopped

    return write_shard(plan, on_image)
