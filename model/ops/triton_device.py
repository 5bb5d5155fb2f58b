"""The device of Triton's kernel launches."""

import torch


def on(device: torch.device) -> torch.cuda.device:
    """Return a context that makes `device` current for Triton; on a CPU, Triton interprets."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
