"""Leases on DALI's outputs: keep their GPU memory until every kernel that reads them has ended.

DALI reuses or unmaps the memory of an output in the order of a private stream, even if `run` got
another stream. Without a lease DALI could overwrite the output before a launched kernel reads it.
"""

from collections import deque
from contextlib import suppress
from typing import Protocol


class Moment(Protocol):
    """Point in a stream's work: a torch.cuda.Event, or a torch.cuda.Stream for its latest work."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Stream(Moment, Protocol):
    """CUDA stream as torch.cuda.Stream."""

    def record_event(self) -> Moment: ...


class OutputLeases:
    """Queue of leases, oldest first; only the output of the newest lease is in use."""

    def __init__(self) -> None:
        self._leases: deque[_Lease] = deque()

    def add(self, outputs: object, stream: Stream) -> None:
        """Keep `outputs`. Only kernels launched on `stream` before `end_last` may read them."""
        self._leases.append(_Lease(outputs, stream))

    def end_last(self) -> None:
        """End the newest lease and drop the finished ones. Wait for all leases but the newest."""
        if self._leases:
            self._leases[-1].end()
        while len(self._leases) > 1 or (self._leases and self._leases[0].is_done):
            self._leases[0].wait()
            self._leases.popleft()

    def close(self) -> None:
        """Wait for the GPU and drop all leases."""
        while self._leases:
            with suppress(RuntimeError):  # raised if the GPU has failed
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
