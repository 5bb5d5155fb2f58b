"""What DALI made in a GPU's memory, kept until the GPU is done with it.

DALI gives the memory of an output away in the order of a stream of its own, also where `run` was
given another: it writes the next batches there, or unmaps it, though a kernel that is to read the
output may only have been launched.
"""

from collections import deque
from contextlib import suppress
from typing import Protocol


class Moment(Protocol):
    """An event, or a stream as it is when it is asked: torch.cuda.Event, torch.cuda.Stream."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Stream(Moment, Protocol):
    def record_event(self) -> Moment: ...


class OutputLeases:
    """Outputs that were handed out one after the other, the last one in use."""

    def __init__(self) -> None:
        self._leases: deque[_Lease] = deque()

    def add(self, outputs: object, stream: Stream) -> None:
        """Keep `outputs`, which are read by what will be launched on `stream`, and nowhere else,
        before the next call of `end_last`."""
        self._leases.append(_Lease(outputs, stream))

    def end_last(self) -> None:
        """Nothing that will be launched from now on reads what was lent. Waits for the GPU if it is
        not done with what was lent before the last."""
        if self._leases:
            self._leases[-1].end()
        while len(self._leases) > 1 or (self._leases and self._leases[0].is_done):
            self._leases[0].wait()
            self._leases.popleft()

    def close(self) -> None:
        """Give all back; waits for the GPU."""
        while self._leases:
            with suppress(RuntimeError):  # of a GPU that has failed
                self._leases[0].wait()
            self._leases.popleft()


class _Lease:
    def __init__(self, outputs: object, stream: Stream) -> None:
        self._outputs, self._stream = outputs, stream
        self._last: Moment = stream

    def end(self) -> None:
        self._last = self._stream.record_event()

    @property
    def is_done(self) -> bool:
        return self._last.query()

    def wait(self) -> None:
        self._last.synchronize()

    def __del__(self) -> None:
        with suppress(RuntimeError):
            self.wait()
