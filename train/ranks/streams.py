"""The stream of a GPU that training runs on: before the loader's, wherever both have work."""

from functools import cache

import torch


def training_stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device and process: gradients are made, summed over ranks and used on it."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index, priority=-1)  # type: ignore[no-untyped-call]
