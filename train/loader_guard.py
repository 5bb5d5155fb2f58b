"""Whether the steps of a stage wait for their data, so that compressing more would gain nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelssl.train.schedule import Stage

# The first steps of a stage compile and fill queues.
SKIPPED_STEPS = 10
WATCHED_STEPS = 100
NOTABLE_SHARE = 0.05


class LoaderGuard:
    """Measures, over WATCHED_STEPS steps of each stage, the time spent in `waiting`.

    For runs whose loader works ahead: there a step waits only for a batch that is late.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._stage: Stage | None = None
        self._steps = 0
        self._waited_s = self._began_at = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - begin

    def finding(self, stage: Stage) -> dict[str, Any] | None:
        """After a step of `stage`: once, if more than NOTABLE_SHARE of its time went by waiting.

        waited: that share; images_per_s: what the loader gave.
        """
        if stage != self._stage:
            self._stage, self._steps = stage, 0
        self._steps += 1
        if self._steps == SKIPPED_STEPS:
            self._waited_s, self._began_at = 0.0, time.perf_counter()
        if self._steps != SKIPPED_STEPS + WATCHED_STEPS:
            return None
        elapsed_s = time.perf_counter() - self._began_at
        share = self._waited_s / elapsed_s
        if share < NOTABLE_SHARE:
            return None
        rate = self._batch * WATCHED_STEPS / elapsed_s
        return {
            "p": stage.compression.p,
            "drop": stage.compression.drop,
            "waited": round(share, 3),
            "images_per_s": round(rate, 1),
        }
