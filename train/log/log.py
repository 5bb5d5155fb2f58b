"""The log of a run, log.jsonl, with one line for each step and one for each other event.

Losses are copied from the GPU asynchronously, during later steps. About once a second the log
writes the losses whose copy has finished. Neither the training loop nor the GPU waits for the log.
R is the number of ranks.
"""

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import torch
from torch import Tensor

from accelssl.errors import UserError
from accelssl.train.checkpoints.checkpoint import after_lost_numbers

FLUSH_S = 1.0
NAME = "log.jsonl"


class Watcher(Protocol):
    """Callable that receives each line of the log when the line is written."""

    def __call__(self, line: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class _Step:
    """Training step whose line is not written yet.

    `values` holds the losses of the ranks, then the scalars named in `noted`. On a GPU, `values` is
    valid after the event `copied`; on a CPU, `copied` is None.
    """

    line: dict[str, Any]
    noted: list[str]
    values: Tensor
    copied: torch.cuda.Event | None

    @classmethod
    def of(cls, line: dict[str, Any], losses_R: Tensor, noted: dict[str, Tensor]) -> Self:
        made = torch.cat([losses_R.detach(), *(value.view(1) for value in noted.values())])
        if made.device.type != "cuda":
            return cls(line, list(noted), made, None)
        values = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)
        values.copy_(made, non_blocking=True)
        copied = torch.cuda.current_stream(made.device).record_event()
        return cls(line, list(noted), values, copied)

    @property
    def is_there(self) -> bool:
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()


@dataclass
class Log:
    """Context manager that appends to RUN/log.jsonl and passes each line to `watchers`.

    `failure` is an error after a loss that is not finite was written; the run must then stop.
    """

    run: Path
    watchers: list[Watcher] = field(default_factory=list)
    failure: UserError | None = None

    def __enter__(self) -> Self:
        self._file: IO[str] = (self.run / NAME).open("a")
        self._pending: list[_Step] = []
        self._flushed_at = time.perf_counter()
        self._rated_at: tuple[float, int, float] | None = None
        _end_cut_line(self._file, self.run / NAME)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
            else:
                with suppress(RuntimeError, OSError):  # the GPU or the disk may have failed
                    self._write_what_is_there()
        finally:
            self._file.close()

    def step(self, line: dict[str, Any], losses_R: Tensor, noted: dict[str, Tensor]) -> None:
        """Add one training step; the log gets the mean loss of the ranks and the noted scalars."""
        self._pending.append(_Step.of(line, losses_R, noted))
        if time.perf_counter() - self._flushed_at >= FLUSH_S:
            self._write_what_is_there()

    def event(self, kind: str, **fields: Any) -> None:
        """Write a line for an event other than a step: an evaluation, a resume, the end."""
        self.flush()
        self._write({"kind": kind, **fields})

    def flush(self) -> None:
        """Write all pending steps. Wait until the GPU has finished them."""
        if self._pending:
            self._pending[-1].wait()
        self._write_steps(list(self._pending))

    def _write_what_is_there(self) -> None:
        """Write the pending steps whose values have been copied, without waiting."""
        there = list(takewhile(lambda step: step.is_there, self._pending))
        if there:
            self._write_steps(there)

    def _write_steps(self, steps: list[_Step]) -> None:
        """Write `steps`, which are the oldest pending steps."""
        del self._pending[: len(steps)]
        rates = self._rates(steps[-1].line) if steps else {}
        for step in steps:
            values: list[float] = step.values.tolist()
            losses = values[: len(values) - len(step.noted)]
            scalars = {
                name: round(value, 6)
                for name, value in zip(step.noted, values[len(losses) :], strict=True)
            }
            loss = sum(losses) / len(losses)
            self._write({"kind": "step", **step.line, "loss": loss, **scalars, **rates})
            self.failure = self.failure or self._failure(step.line, losses)
        self._file.flush()
        self._flushed_at = time.perf_counter()

    def _failure(self, line: dict[str, Any], losses: list[float]) -> UserError | None:
        """Return an error if the loss of a rank is not finite, else None."""
        lost = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        if not lost:
            return None
        where = ""
        if len(losses) > 1:
            where = f" on rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} of {len(losses)}"
        return UserError(
            f"The loss of step {line['step']} is {losses[lost[0]]}{where} "
            f"(p{line['p']} d{line['drop']:g}, learning rate {line['lr']:.3g}).",
            after_lost_numbers(self.run),
        )

    def _rates(self, last: dict[str, Any]) -> dict[str, float]:
        """Return the mean rates since the previous call.

        The rate of a single step would be wrong on a GPU, because the host only queues the step.
        """
        now = (last["elapsed_s"], last["images"], last["spent"])
        before = self._rated_at or (0.0, 0, 0.0)
        seconds = max(now[0] - before[0], 1e-9)
        self._rated_at = now
        return {
            "images_per_s": round((now[1] - before[1]) / seconds, 3),
            "units_per_s": round((now[2] - before[2]) / seconds, 3),
        }

    def start_clock(self, elapsed_s: float, images: int, spent: float) -> None:
        """Set the point from which the next flush counts rates, at the start or after a pause."""
        self._rated_at = (elapsed_s, images, spent)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        for watch in list(self.watchers):
            try:
                watch(line)
            except OSError:  # a watcher's full disk or closed pipe must not end the run
                self.watchers.remove(watch)


class SilentLog(Log):
    """Log that writes nothing, for ranks other than 0. Losses are not copied from the device."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def step(self, line: dict[str, Any], losses_R: Tensor, noted: dict[str, Tensor]) -> None:
        pass

    def event(self, kind: str, **fields: Any) -> None:
        pass

    def flush(self) -> None:
        pass


def _end_cut_line(file: IO[str], path: Path) -> None:
    """End an incomplete last line, which a killed run may leave, with a newline."""
    with path.open("rb") as written:
        written.seek(0, 2)
        if written.tell():
            written.seek(-1, 2)
            if written.read(1) != b"\n":
                file.write("\n")
