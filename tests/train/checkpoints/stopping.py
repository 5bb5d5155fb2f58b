"""A run that is stopped while it trains, for tests of what a resumed one makes of it."""

import os
import signal
import time
from collections.abc import Sequence

from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Batch
from accelssl.train.session import Session


def terminate() -> None:
    """A SIGTERM to this process. Another thread than this one hears it."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def stop_before_step(session: Session, number: int) -> None:
    """A SIGTERM arrives while step number - 1 is being made."""
    original, calls = session.loader.next, 0

    def next_and_stop(
        compressions: Sequence[Compression], then: Sequence[Compression] | None = None
    ) -> Batch:
        nonlocal calls
        calls += 1
        if calls == number - 1:
            terminate()
        return original(compressions, then)

    session.loader.next = next_and_stop  # type: ignore[method-assign]
