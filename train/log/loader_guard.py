"""Detection of stages limited by the data loader, where more compression brings no speed-up."""

import time
from typing import Any

from accelssl.train.config.schedule import Stage

# The first steps of a stage are slow: they compile the model and fill the queues of the loader.
SKIPPED_STEPS = 10
WATCHED_STEPS = 100
NOTABLE_SHARE = 0.1


class LoaderGuard:
    """Counter of late batches over WATCHED_STEPS steps of each stage.

    A batch is late if the GPU is idle when the batch arrives. The host may wait for a batch while
    the GPU still computes earlier steps: such a batch is not late.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._stage: Stage | None = None
        self._steps = self._late = 0
        self._began_at = 0.0

    def finding(self, stage: Stage, was_late: bool) -> dict[str, Any] | None:
        """Count a step of `stage`; return a finding if over NOTABLE_SHARE of the batches were late.

        A stage has at most one finding, after its last watched step; otherwise return None. In the
        finding, late is the share of late batches and images_per_s the rate of the loader.
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
