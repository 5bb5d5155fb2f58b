"""The log of a run, log.jsonl: a line a step, and a line for whatever else happens.

Losses stay on the device until the log is flushed, about once a second, so that no step waits.
R is the number of ranks.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import torch
from torch import Tensor

from accelssl.errors import UserError
from accelssl.train.checkpoint import after_lost_numbers

FLUSH_S = 1.0
NAME = "log.jsonl"


class Watcher(Protocol):
    """Somebody who is shown each line of the log as it is written."""

    def __call__(self, line: dict[str, Any]) -> None: ...


@dataclass
class Log:
    """Appends to RUN/log.jsonl; `watchers` see each line too. Use as a context.

    `failure` is there once a loss that is not finite was written: the run cannot go on.
    """

    run: Path
    watchers: list[Watcher] = field(default_factory=list)
    failure: UserError | None = None

    def __enter__(self) -> Self:
        self._file: IO[str] = (self.run / NAME).open("a")
        self._pending: list[tuple[dict[str, Any], list[str], Tensor]] = []
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
        finally:
            self._file.close()

    def step(self, line: dict[str, Any], losses_R: Tensor, noted: dict[str, Tensor]) -> None:
        """One training step. The losses of the ranks, of which the log gets the mean, and the
        scalars that were noted beside are fetched from the device with the next flush."""
        on_device = torch.cat([losses_R.detach(), *(value.view(1) for value in noted.values())])
        self._pending.append((line, list(noted), on_device))
        if time.perf_counter() - self._flushed_at >= FLUSH_S:
            self.flush()

    def event(self, kind: str, **fields: Any) -> None:
        """Anything else that happened: an evaluation, a resume, the end."""
        self.flush()
        self._write({"kind": kind, **fields})

    def flush(self) -> None:
        """Write what is pending."""
        if self._pending:
            lines = [line for line, _, _ in self._pending]
            names = [names for _, names, _ in self._pending]
            fetched = torch.stack([on_device for _, _, on_device in self._pending]).tolist()
            self._pending.clear()
            for line, noted, values, rates in zip(
                lines, names, fetched, self._rates(lines), strict=True
            ):
                losses = values[: len(values) - len(noted)]
                scalars = {
                    name: round(value, 6)
                    for name, value in zip(noted, values[len(losses) :], strict=True)
                }
                loss = sum(losses) / len(losses)
                self._write({"kind": "step", **line, "loss": loss, **scalars, **rates})
                self.failure = self.failure or self._failure(line, losses)
        self._file.flush()
        self._flushed_at = time.perf_counter()

    def _failure(self, line: dict[str, Any], losses: list[float]) -> UserError | None:
        """What there is to say about the losses of a step's ranks when one is not finite."""
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

    def _rates(self, lines: list[dict[str, Any]]) -> Iterator[dict[str, float]]:
        """Rates since the previous flush: steps on a GPU are only queued, so single ones lie."""
        last = lines[-1]
        now = (last["elapsed_s"], last["images"], last["spent"])
        before = self._rated_at or (0.0, 0, 0.0)
        seconds = max(now[0] - before[0], 1e-9)
        self._rated_at = now
        rates = {
            "images_per_s": round((now[1] - before[1]) / seconds, 3),
            "units_per_s": round((now[2] - before[2]) / seconds, 3),
        }
        return iter([rates] * len(lines))

    def start_clock(self, elapsed_s: float, images: int, spent: float) -> None:
        """Where the rates of the next flush are counted from: at the start and after a pause."""
        self._rated_at = (elapsed_s, images, spent)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        for watch in list(self.watchers):
            try:
                watch(line)
            except OSError:  # a full disk or a closed pipe of an onlooker must not end the run
                self.watchers.remove(watch)


class SilentLog(Log):
    """For a rank that writes none: losses stay on the device and are forgotten."""

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
    """A killed run may have left half a line: the next one must not be glued to it."""
    with path.open("rb") as written:
        written.seek(0, 2)
        if written.tell():
            written.seek(-1, 2)
            if written.read(1) != b"\n":
                file.write("\n")
