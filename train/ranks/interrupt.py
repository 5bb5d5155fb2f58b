"""SIGTERM and Ctrl-C end a run after the step at hand, so that a checkpoint can be written."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One Ctrl-C comes twice under torchrun, and one scancel under Slurm: to all, and handed on.
ONE_S = 2.0


class Interruption:
    """The received signal: `signal` is 0 until one has arrived."""

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def interruption(heard: Callable[[], None] = lambda: None) -> Iterator[Interruption]:
    """Catch SIGTERM and SIGINT inside the block (main thread only).

    At the first signal `heard` is called at once, on a separate thread. Another signal, ONE_S or
    more after the first, ends the process at once, also during a call that hangs: storage, or
    ranks that do not answer. Processes started inside receive neither signal (`kill` them, do not
    `terminate`): Ctrl-C and Slurm's SIGTERM reach them too, and the end of a
    compiler would end the step.
    """
    resource_tracker.ensure_running()  # started by what shares memory, it would unblock both
    caught = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        caught.signal = caught.signal or number

    before = {n: signal.signal(n, note) for n in SIGNALS}
    with _ended_by_another(heard):  # its thread is there before, and hears them
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield caught
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _ended_by_another(heard: Callable[[], None]) -> Iterator[None]:
    """Run a thread that receives signals even while the main thread is in an endless call."""
    hearing, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(hearing, heard), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)


def _listen(hearing: int, heard: Callable[[], None]) -> None:
    first_at: float | None = None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # whoever started this may block them
    with open(hearing, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in SIGNALS:
                continue
            now = time.monotonic()
            if first_at is None:
                first_at = now
                heard()
            elif now - first_at >= ONE_S:
                # What else there is to end, threads and locks of others, may be what hangs.
                os._exit(128 + number[0])
