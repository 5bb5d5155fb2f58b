"""Signals: the first is noted, the same one twice is one, and a later one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from accelssl.train.ranks.interrupt import interruption

HANGING = """
import ctypes, threading
from accelssl.train.ranks import interrupt

interrupt.ONE_S = 1.0
with interrupt.interruption() as interrupted:
    print("ready", flush=True)
    if {in_python}:
        threading.Event().wait()
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # for ever, and no handler of Python's runs
"""

STARTING = """
import multiprocessing, os, subprocess, sys
from accelssl.train.ranks.interrupt import interruption

with interruption() as interrupted:
    multiprocessing.get_context("spawn").Queue()  # as a DataLoader does
    compiler = "import time; print('ready', flush=True); time.sleep(1)"
    started = subprocess.Popen([sys.executable, "-c", compiler], stdout=subprocess.PIPE)
    started.stdout.readline()
    os.killpg(0, {number})
    assert started.wait() == 0
    assert interrupted.signal == {number}
"""

DEAF = """
import os, signal, time
from multiprocessing import resource_tracker

resource_tracker.ensure_running()
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
from accelssl.train.ranks.interrupt import interruption

with interruption() as interrupted:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        if interrupted.signal == signal.SIGINT:
            os._exit(0)
        time.sleep(0.05)
    os._exit(1)
"""


@pytest.mark.parametrize("in_python", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_hangs_is_ended_by_a_later_signal_and_not_by_an_echo(
    number: signal.Signals, in_python: bool
) -> None:
    code = HANGING.format(in_python=in_python)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=20) == 128 + number
    finally:
        process.kill()


def test_the_first_signal_is_noted_and_everything_is_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    told: list[str] = []
    with interruption(lambda: told.append("once")) as interrupted:
        assert interrupted.signal == 0 and not told
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: interrupted.signal)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        assert interrupted.signal == signal.SIGTERM and told == ["once"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}
    wait_for(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_step_has_started_outlives_a_signal_to_the_whole_group(
    number: signal.Signals,
) -> None:
    code = STARTING.format(number=int(number))
    subprocess.run([sys.executable, "-c", code], start_new_session=True, timeout=60, check=True)


def test_it_hears_what_its_own_starter_had_blocked() -> None:
    subprocess.run([sys.executable, "-c", DEAF], timeout=60, check=True)


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("It did not happen within ten seconds.")
