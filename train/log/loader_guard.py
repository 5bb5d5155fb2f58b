"""Whether the steps of a stage wait for their data, so that compressing more would gain nothing."""

import time
from typing import Any

from accelssl.train.config.schedule import Stage

# The first steps of a stage compile and fill queues.
SKIPPED_STEPS = 10
WATCHED_STEPS = 100
NOTABLE_SHARE = 0.1


class LoaderGuard:
    """Counts, over WATCHED_STEPS steps of each stage, those whose batch came too late.

    The host may wait for a batch without harm while the GPU is still at the steps before: what
    counts is that the GPU had nothing left to do.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._stage: Stage | None = None
        self._steps = self._late = 0
        self._began_at = 0.0

    def finding(self, stage: Stage, was_late: bool) -> dict[str, Any] | None:
        """After a step of `stage`: once, if more than NOTABLE_SHARE of the batches were late.

        late: that share; images_per_s: what the loader gave.
        """
        if stage != self._stage:
            self._stage, self._steps = stage, 0
        self._steps += 1
        self._late += was_late
        if self._steps == SKIPPED_STEPS:
            self._late, self._began_at = 0, time.perf_counter()
        if self._steps != SKIPPED_STEPS + WATCHED_STEPS:
            return None
        elapsed_s = time.perf_counter() - self._began_at
        share = self._late / WATCHED_STEPS
        if share <= NOTABLE_SHARE:
            return None
        return {
            "p": stage.compression.p,
            "drop": stage.compression.drop,
            "late": round(share, 3),
            "images_per_s": round(self._batch * WATCHED_STEPS / elapsed_s, 1),
        }
