"""The GPU stream for training, with priority over the loader's stream."""

from functools import cache

import torch


def training_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the training stream, one for each device and process.

    Gradients are computed, summed over ranks and used on this stream.
    """
    return _stream(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index, priority=-1)  # type: ignore[no-untyped-call]
