"""CUDA stream for data preparation, separate from the training stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class PrepStream:
    """CUDA stream for data preparation; on a CPU all methods run in order and wait for nothing.

    Only one thread at a time may use an object.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Launch the kernels of the `with` block on this stream."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """Record an event after all work launched on this stream; None on a CPU."""
        return None if self._stream is None else self._stream.record_event()

    def sent(self, array: NDArray[Any]) -> Tensor:
        """Copy an array to the device in the order of this stream, without waiting for the copy."""
        tensor = torch.from_numpy(array)
        pinned = tensor if self._stream is None else tensor.pin_memory()
        return pinned.to(self._device, non_blocking=True)

    def hand_over(self, made: torch.cuda.Event | None, *tensors: Tensor) -> None:
        """Let the current stream use `tensors` of this stream after it has reached event `made`."""
        if made is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_event(made)
        for tensor in tensors:
            tensor.record_stream(current)
