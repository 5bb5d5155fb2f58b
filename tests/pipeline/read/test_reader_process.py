"""Reading in processes against reading in threads."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.draws.draws import Drawn, Draws
from accelssl.pipeline.draws.order import Plan, Position, plans
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.pipeline.read import feed
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.pipeline.read.reader_process import ReaderProcess, SharedMemory
from accelssl.shards.shard_set import ShardSet, Split, open_shards

DRAWS = Draws(views.simclr(240), 5, (Compression(30, 0.5), Compression(16, 0.75)))
NONE = Draws((), 0)


def first(samples: int) -> Plan:
    return Plan(np.arange(samples), 0, Position())


def batches(split: Split, count: int, readers: int) -> list[Encoded]:
    planned = plans(len(split), 7, seed=5, rank=0, world=1, start=Position())
    return list(
        islice(
            EncodedBatches(split, planned, DRAWS, 2, readers=readers),
            count,
        )
    )


@pytest.mark.parametrize("readers", [1, 3])
def test_processes_give_the_batches_that_threads_give(shard_set: ShardSet, readers: int) -> None:
    split = shard_set.split("train")
    for ours, theirs in zip(batches(split, 12, readers), batches(split, 12, 0), strict=True):
        assert (ours.plan.samples_N == theirs.plan.samples_N).all()
        assert (ours.labels_N == theirs.labels_N).all()
        assert (ours.sizes_N2 == theirs.sizes_N2).all()
        for a, b in zip(ours.drawn.windows, theirs.drawn.windows, strict=True):
            assert (a == b).all()
        for shown, other in zip(ours.drawn.views, theirs.drawn.views, strict=True):
            assert shown.compression == other.compression
            assert (shown.params_NP == other.params_NP).all()
            assert (shown.keep_idx_NL == other.keep_idx_NL).all()
        assert [a.tobytes() for a in ours.jpegs] == [b.tobytes() for b in theirs.jpegs]
        for sample, jpeg in zip(ours.plan.samples_N.tolist(), ours.jpegs, strict=True):
            assert jpeg.tobytes() == split.read(sample)[0]


def test_memory_of_batches_that_are_gone_is_used_again(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Counted(SharedMemory):
        def __init__(self, size_bytes: int) -> None:
            made.append(size_bytes)
            super().__init__(size_bytes)

    monkeypatch.setattr(feed, "SharedMemory", Counted)
    split = shard_set.split("train")
    planned = plans(len(split), 7, seed=5, rank=0, world=1, start=Position())
    stream = EncodedBatches(split, planned, NONE, 2, readers=2)
    for encoded in islice(stream, 40):
        assert len(encoded.jpegs) == 7
    assert len(made) <= feed.READ_AHEAD + 4


def test_a_loader_gives_the_same_tokens_either_way(shard_set: ShardSet) -> None:
    options = LoaderOptions(batch=8, seed=3, device=torch.device("cpu"))
    pair = (Compression(30, 0.5),) * 2
    loaders = [
        Loader(shard_set.split("train"), views.simclr(240), replace(options, readers=readers))
        for readers in (0, 2)
    ]
    for _ in range(7):
        a, b = (loader.next(pair) for loader in loaders)
        for x, y in zip(a.views, b.views, strict=True):
            assert torch.equal(x.values_NLV, y.values_NLV)
    for loader in loaders:
        loader.close()


def test_an_error_of_a_process_is_the_users(shard_set: ShardSet, tmp_path: Path) -> None:
    """The tar is truncated after the set was opened."""
    copy = tmp_path / "set"
    copy.mkdir()
    for file in Path(shard_set.location).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    split = open_shards(copy).split("train")
    memory = SharedMemory(int(split.room_bytes.sum()))
    process = ReaderProcess(split)
    everything = first(len(split))
    process.read(everything, memory, NONE)
    tar = Path(split.tars[0])
    os.truncate(tar, tar.stat().st_size // 3)
    with pytest.raises(UserError, match=r"train-000000.tar: key .* ends after"):
        process.read(everything, memory, NONE)
    process.close()


class Elsewhere(Draws):
    """Drawing that a reader process cannot import."""


Elsewhere.__module__ = "nowhere"


def test_what_a_process_cannot_draw_is_said_and_it_goes_on(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, memory = ReaderProcess(shard_set.split("train")), SharedMemory(1 << 22)
    monkeypatch.setitem(sys.modules, "nowhere", sys.modules[__name__])
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        process.read(first(3), memory, Elsewhere((), 0))
    assert process.read(first(3), memory, NONE)[0].labels_N.shape == (3,)
    process.close()


def test_a_set_written_anew_is_noticed(shard_set: ShardSet) -> None:
    split = open_shards(shard_set.location).split("train")
    split.digest = "of before"
    process = ReaderProcess(split)
    with pytest.raises(UserError, match="has changed since this run opened it"):
        process.read(first(3), SharedMemory(1 << 20), NONE)
    process.close()


def test_a_killed_process_is_said_and_nothing_hangs(shard_set: ShardSet) -> None:
    split = shard_set.split("train")
    process = ReaderProcess(split)
    memory = SharedMemory(1 << 22)
    process.read(first(3), memory, NONE)
    process._process.send_signal(signal.SIGKILL)
    process._process.wait()
    with pytest.raises(UserError, match=r"ended unexpectedly \(exit code -9\)"):
        process.read(first(3), memory, NONE)
    process.close()


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not listed.exists():
        pytest.skip("needs /proc")
    return {int(pid) for pid in listed.read_text().split()}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_processes_end_with_the_stream_that_started_them(shard_set: ShardSet) -> None:
    planned = plans(40, 7, seed=5, rank=0, world=1, start=Position())
    gc.collect()
    before = children()
    stream = EncodedBatches(shard_set.split("train"), planned, NONE, 2, readers=2)
    next(stream)
    started = children() - before
    assert len(started) == 2
    stream.close()
    assert not any(map(alive, started))


def test_a_closed_loader_has_given_everything_back(shard_set: ShardSet) -> None:
    options = LoaderOptions(batch=8, seed=3, device=torch.device("cpu"), readers=1)
    pair = (Compression(48, 0.0),) * 2
    gc.collect()
    gc.disable()  # closing is to do it, not the collector
    try:
        before = children(), open_files(), threading.active_count()
        for _ in range(2):
            loader = Loader(shard_set.split("train"), views.simclr(240), options)
            loader.next(pair)
            loader.close()
            del loader
        after = children(), open_files(), threading.active_count()
    finally:
        gc.enable()
    assert after[0] == before[0] and after[2] == before[2]
    assert after[1] <= before[1] + 2  # the tars that this process has opened itself


def test_a_signal_to_the_whole_job_leaves_the_readers_reading(shard_set: ShardSet) -> None:
    """The trainer handles the signal, and needs the requested batches to end cleanly."""
    split = shard_set.split("train")
    process, memory = ReaderProcess(split), SharedMemory(1 << 22)
    process.read(first(3), memory, NONE)
    for number in (signal.SIGTERM, signal.SIGINT):
        process._process.send_signal(number)
        time.sleep(0.1)
        assert process.read(first(3), memory, NONE)[0].labels_N.shape == (3,)
    process.close()


def test_processes_end_with_a_trainer_that_was_killed(shard_set: ShardSet, tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, time
        import numpy as np
        from accelssl.pipeline.draws.draws import Draws
        from accelssl.pipeline.draws.order import Plan, Position
        from accelssl.pipeline.read.reader_process import ReaderProcess, SharedMemory
        from accelssl.shards.shard_set import open_shards
        process = ReaderProcess(open_shards({shard_set.location!r}).split("train"))
        plan = Plan(np.arange(3), 0, Position())
        process.read(plan, SharedMemory(1 << 22), Draws((), 0))
        print(process._process.pid, flush=True)
        time.sleep(100)
        """)
    )
    trainer = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    reader = int(trainer.stdout.readline())
    assert alive(reader)
    trainer.kill()
    trainer.wait()
    until = time.monotonic() + 10
    while alive(reader) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(reader)


def test_a_script_without_a_main_guard_may_use_them(shard_set: ShardSet, tmp_path: Path) -> None:
    """Python's multiprocessing would run this script again in each process."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        print("once")
        import torch
        from accelssl.pipeline import views
        from accelssl.pipeline.compression import Compression
        from accelssl.pipeline.loader import Loader, LoaderOptions
        from accelssl.shards.shard_set import open_shards
        options = LoaderOptions(batch=4, seed=0, device=torch.device("cpu"), readers=1)
        train = open_shards({shard_set.location!r}).split("train")
        loader = Loader(train, views.simclr(96), options)
        print(loader.next((Compression(48, 0.0),) * 2).views[0].values_NLV.shape)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["once", "torch.Size([4, 4, 768])"], done.stderr


def test_batches_that_are_dropped_end_their_work_without_waiting_for_it(
    shard_set: ShardSet,
) -> None:
    """Garbage collection may run in a thread that holds a lock that a join needs."""
    planned = plans(40, 7, seed=5, rank=0, world=1, start=Position())
    gc.collect()
    before = children()
    stream = EncodedBatches(shard_set.split("train"), planned, NONE, 2, readers=2)
    next(stream)
    started = children() - before
    # Python's own, where it has one: 3.11 and 3.12 take it in join(), too.
    with getattr(threading, "_shutdown_locks_lock", contextlib.nullcontext()):
        del stream
        gc.collect()
    until = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(started) == 2 and not any(map(alive, started))


def test_a_failure_is_said_as_often_as_it_is_asked_for(shard_set: ShardSet) -> None:
    planned = plans(40, 7, seed=5, rank=0, world=1, start=Position())

    def fail(*_: object) -> Drawn:
        raise UserError("No window.", "Open one.")

    stream = EncodedBatches(shard_set.split("train"), planned, fail, 2)
    for _ in range(3):
        with pytest.raises(UserError, match="No window"):
            next(stream)
    stream.close()
