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


class Loans:
    """Outputs that were handed out one after the other, the last one in use."""

    def __init__(self) -> None:
        self._loans: deque[_Loan] = deque()

    def lend(self, outputs: object, stream: Stream) -> None:
        """Keep `outputs`, which are read by what will be launched on `stream`, and nowhere else,
        before the next call of `take_back`."""
        self._loans.append(_Loan(outputs, stream))

    def take_back(self) -> None:
        """Nothing that will be launched from now on reads what was lent. Waits for the GPU if it is
        not done with what was lent before the last."""
        if self._loans:
            self._loans[-1].end()
        while len(self._loans) > 1 or (self._loans and self._loans[0].is_done):
            self._loans[0].wait()
            self._loans.popleft()

    def close(self) -> None:
        """Give all back; waits for the GPU."""
        while self._loans:
            with suppress(RuntimeError):  # of a GPU that has failed
                self._loans[0].wait()
            self._loans.popleft()


class _Loan:
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
