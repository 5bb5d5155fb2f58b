"""`python -m accelssl.benchmarks.doctor.queue_trial cuda:0`: what streams that wait cost others.

Many streams wait for one long kernel, as DALI's wait for the JPEG decoder, while another stream has
short kernels to run that depend on nothing. They run at once where that stream has a hardware queue
of its own; else they stand behind a stream that waits. Prints JSON, in milliseconds, medians:
wait_ms, the long kernel; beside_ms, until the short kernels are done, counted from the long one's
start; alone_ms, the same without the long kernel.
"""

import json
import statistics
import sys
from typing import Any

import torch

# With the stream of the long kernel and torch's own they fit into 32 queues, and no queue of 8 is
# without one that waits.
WAITING, SHORT_STREAMS = 16, 6
_KERNELS, _ROUNDS, _WAIT_MS = 20, 5, 10.0


def main() -> None:
    device = torch.device(sys.argv[1])
    with torch.cuda.device(device):
        trial = _Trial(device)
        for stream in trial.short_streams():  # loads the kernels, which waits for the device
            trial.short_ms(stream, is_long=False)
        alone = [trial.short_ms(stream, is_long=False) for stream in trial.short_streams()]
        beside = [trial.short_ms(stream, is_long=True) for stream in trial.short_streams()]
    figures = {
        "wait_ms": statistics.median(trial.waited_ms),
        "alone_ms": statistics.median(alone),
        "beside_ms": statistics.median(beside),
    }
    print(json.dumps(figures))


class _Trial:
    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.zeros(1024, device=device)
        self._others = [torch.zeros(1, device=device) for _ in range(WAITING)]
        # Streams of our own: torch's pool may hand out one stream twice.
        streams = [_new_stream(device) for _ in range(WAITING + SHORT_STREAMS + 1)]
        self._long, *others = streams
        self._waiting, self._short = others[:WAITING], others[WAITING:]
        self._cycles = 10_000_000
        for _ in range(3):  # the first brings the clock up
            begin, over = _event(), _event()
            begin.record(self._long)
            self._sleep()
            over.record(self._long)
            torch.cuda.synchronize()
            self._cycles = max(1000, int(self._cycles * _WAIT_MS / begin.elapsed_time(over)))
        self.waited_ms: list[float] = []

    def short_streams(self) -> list[Any]:
        """Streams of our own, and torch's default stream, on which training runs."""
        return [torch.cuda.current_stream(), *self._short] * _ROUNDS

    def short_ms(self, stream: Any, is_long: bool) -> float:
        """From the moment that the others begin to wait to the last of the kernels on `stream`.

        Not from an event on `stream` itself: it would stand in the same queue.
        """
        torch.cuda.synchronize()
        begin, over, end = (_event() for _ in range(3))
        begin.record(self._long)
        if is_long:
            self._sleep()
        over.record(self._long)
        for number, waiting in zip(self._others, self._waiting, strict=True):
            waiting.wait_event(over)
            with torch.cuda.stream(waiting):
                number.add_(1)
        with torch.cuda.stream(stream):
            for _ in range(_KERNELS):
                self._numbers.add_(1)
        end.record(stream)
        torch.cuda.synchronize()
        if is_long:
            self.waited_ms.append(begin.elapsed_time(over))
        return float(begin.elapsed_time(end))

    def _sleep(self) -> None:
        with torch.cuda.stream(self._long):
            torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _new_stream(device: torch.device) -> Any:
    from cuda.bindings import driver

    error, handle = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    if int(error):
        raise RuntimeError(f"the CUDA driver: {error.name}")
    return torch.cuda.ExternalStream(int(handle), device=device)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
